//! A drawing as SVG.

use std::fmt::Write as _;

use martlet_cluster::svg::{COLOURS, close, line, open, text};

use super::{Plot, Style, axis};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

impl Plot {
    /// The drawing as the text of an SVG file.
    pub fn svg(&self) -> String {
        let mut out = open(WIDTH, HEIGHT);
        text(&mut out, LEFT, TOP / 2.0, "font-size=\"16\"", &self.title);
        match self.scales() {
            Some((x, y)) => self.draw(&x, &y, &mut out),
            None => text(&mut out, LEFT, HEIGHT / 2.0, "", "nothing to draw"),
        }
        close(out)
    }

    fn draw(&self, x: &axis::Scale, y: &axis::Scale, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let across = |value| x.place(value).map(|at| LEFT + at * (right - LEFT));
        let up = |value| y.place(value).map(|at| bottom - at * (bottom - TOP));
        for (at, tick) in x.ticks.iter().filter_map(|tick| Some((across(*tick)?, tick))) {
            line(out, (at, TOP), (at, bottom), "stroke=\"#ddd\"");
            text(out, at, bottom + 20.0, "text-anchor=\"middle\"", &axis::name(*tick));
        }
        for (at, tick) in y.ticks.iter().filter_map(|tick| Some((up(*tick)?, tick))) {
            line(out, (LEFT, at), (right, at), "stroke=\"#ddd\"");
            text(out, LEFT - 8.0, at + 4.0, "text-anchor=\"end\"", &axis::name(*tick));
        }
        text(out, (LEFT + right) / 2.0, HEIGHT - 15.0, "text-anchor=\"middle\"", &self.x.label);
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {})\"", (TOP + bottom) / 2.0);
        text(out, 20.0, (TOP + bottom) / 2.0, &turned, &self.y.label);
        for (number, (at, what)) in self.events.iter().filter_map(|(x, what)| Some((across(*x)?, what))).enumerate() {
            line(out, (at, TOP), (at, bottom), "stroke=\"#888\" stroke-dasharray=\"4 3\"");
            // One below the other, since they may be close.
            text(out, at + 4.0, TOP + 12.0 + 14.0 * (number % 12) as f64, "font-size=\"11\" fill=\"#555\"", what);
        }
        let mut legend = TOP + 10.0;
        for (series, colour) in self.series.iter().zip(COLOURS.into_iter().cycle()) {
            let places = series.points.iter().filter_map(|(px, py)| Some((across(*px)?, up(*py)?)));
            let joined: Vec<String> = places.clone().map(|(px, py)| format!("{px:.1},{py:.1}")).collect();
            let _ = writeln!(out, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>", joined.join(" "));
            for (px, py) in places.filter(|_| series.style == Style::Line) {
                let _ = writeln!(out, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
            }
            line(out, (right + 15.0, legend - 4.0), (right + 35.0, legend - 4.0), &format!("stroke=\"{colour}\" stroke-width=\"3\""));
            text(out, right + 42.0, legend, "", &series.name);
            legend += 20.0;
        }
    }
}
