//! Shapes and text of drawings as SVG: only what any browser or office program can show.

use std::fmt::Write as _;

/// Okabe and Ito's colours, which colour-blind people can distinguish too.
pub const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Begins a drawing of this size, on white.
pub fn open(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}

/// Ends a drawing.
pub fn close(mut out: String) -> String {
    out += "</svg>\n";
    out
}

/// A straight line, with attributes.
pub fn line(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let _ = writeln!(out, "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>", from.0, from.1, to.0, to.1);
}

/// A text, with attributes. Characters that are special in SVG are escaped.
pub fn text(out: &mut String, x: f64, y: f64, style: &str, what: &str) {
    let escaped = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{escaped}</text>");
}
