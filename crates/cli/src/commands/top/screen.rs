//! The screen: drawn anew at each look, and put back however it ends.

use std::io::BufWriter;
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{io, panic};

use anstyle::{AnsiColor, Color, Effects};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{execute, queue};
use ratatui::layout::Rect;
use ratatui::style::{self, Modifier};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget as _;
use ratatui::{Frame, Terminal};

use super::following;
use super::history::History;
use super::keys::{Keys, Press};
use super::page::Page;
use super::terminal::{self, Ended, Patient};
use crate::watch::lookout::Lookout;

/// Signals, and the terminal's size, are looked for so often.
const GLANCE: Duration = Duration::from_millis(100);

/// How long a terminal may take what puts it back.
const FAREWELL: Duration = Duration::from_millis(200);

/// The terminal, in raw mode and on its other screen for as long as it lives. A panic puts it back before it is told, in programs that abort too.
struct Screen {
    /// `None` once nothing more is drawn.
    drawing: Option<Terminal<CrosstermBackend<BufWriter<Patient>>>>,
}

impl Screen {
    fn open(keys: &Rc<Keys>, interrupt: &Interrupt, ended: &Rc<Ended>) -> io::Result<Screen> {
        let patient = Patient { terminal: terminal::open()?, keys: Rc::clone(keys), interrupt: interrupt.clone(), ended: Rc::clone(ended) };
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            put_back();
            hook(info);
        }));
        enable_raw_mode()?;
        // From here on it is put back, also if it has gone half of the way.
        let mut screen = Screen { drawing: None };
        let mut out = BufWriter::new(patient);
        execute!(out, EnterAlternateScreen)?;
        screen.drawing = Some(Terminal::new(CrosstermBackend::new(out))?);
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // What it had not written before does not come behind.
        drop(self.drawing.take());
        put_back();
    }
}

/// Puts the terminal back as it was, with its cursor, which is hidden while nothing is typed.
fn put_back() {
    // What fails here cannot be told: the terminal is gone.
    let _ = disable_raw_mode();
    let mut farewell = Vec::new();
    if let (Ok(()), Ok(terminal)) = (queue!(farewell, LeaveAlternateScreen, Show), terminal::open()) {
        terminal::write_within(&terminal, &farewell, FAREWELL);
    }
}

/// Shows the cluster until a key or a signal ends it.
pub fn run(lookout: &mut Lookout, every: Duration, interrupt: &Interrupt) -> Outcome {
    let has_colours = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
    let keys = Rc::new(Keys::open().context("cannot read the terminal's keys")?);
    let ended = Rc::new(Ended::default());
    let screen = Screen::open(&keys, interrupt, &ended).context("cannot take the terminal");
    match screen.and_then(|mut screen| watch(lookout, every, interrupt, has_colours, &keys, &mut screen)) {
        // A terminal that is closed sends a signal, and can be drawn on no longer: that is an end like others. So is one while it took nothing, be it from the first byte on.
        Err(_) if interrupt.is_raised() || ended.by_key() => Ok(()),
        watched => watched,
    }
}

fn watch(lookout: &mut Lookout, every: Duration, interrupt: &Interrupt, has_colours: bool, keys: &Keys, screen: &mut Screen) -> Outcome {
    let drawing = screen.drawing.as_mut().expect("it is open");
    let mut history = History::default();
    let mut next = Instant::now();
    while !interrupt.is_raised() {
        let look = lookout.look();
        history.note(&look);
        next = following(next, every);
        let mut drawn = None;
        while !interrupt.is_raised() {
            // It is asked and not told: a resized terminal is drawn on anew within a glance.
            let size = drawing.size().context("cannot tell the terminal's size")?;
            if drawn.replace(size) != Some(size) {
                let draw = |frame: &mut Frame| {
                    let area = frame.area();
                    let page = Page::new(&look, lookout.reigns(), &history, Some(area.width.into()));
                    put(&page, has_colours, area, frame.buffer_mut());
                };
                drawing.draw(draw).context("cannot draw on the terminal")?;
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if keys.pressed(left.min(GLANCE)).context("cannot read the terminal's keys")? == Press::End {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Puts a page on the screen; what does not fit is cut off.
fn put(page: &Page, has_colours: bool, area: Rect, buffer: &mut Buffer) {
    for (words, row) in page.lines().iter().zip(area.rows()) {
        let spans = words
            .iter()
            .map(|(style, word)| Span::styled(word.as_str(), if has_colours { translated(*style) } else { style::Style::new() }));
        Line::from_iter(spans).render(row, buffer);
    }
}

/// The styles of all commands, as the screen takes them.
fn translated(style: anstyle::Style) -> style::Style {
    let mut found = style::Style::new();
    let effects = [(Effects::BOLD, Modifier::BOLD), (Effects::DIMMED, Modifier::DIM)];
    for (_, modifier) in effects.iter().filter(|(effect, _)| style.get_effects().contains(*effect)) {
        found = found.add_modifier(*modifier);
    }
    match style.get_fg_color() {
        Some(Color::Ansi(AnsiColor::Green)) => found.fg(style::Color::Green),
        Some(Color::Ansi(AnsiColor::Yellow)) => found.fg(style::Color::Yellow),
        Some(Color::Ansi(AnsiColor::Red)) => found.fg(style::Color::Red),
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::super::page::tests::after_a_failover;
    use super::*;

    fn drawn(width: u16, height: u16, has_colours: bool) -> Buffer {
        let (look, reigns, history) = after_a_failover();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no real terminal");
        let draw = |frame: &mut Frame| {
            let area = frame.area();
            let page = Page::new(&look, &reigns, &history, Some(area.width.into()));
            put(&page, has_colours, area, frame.buffer_mut());
        };
        terminal.draw(draw).expect("no real terminal");
        terminal.backend().buffer().clone()
    }

    fn text(buffer: &Buffer) -> Vec<String> {
        let row = |row: Rect| row.positions().map(|at| buffer[at].symbol()).collect::<String>().trim_end().to_owned();
        buffer.area.rows().map(row).collect()
    }

    #[test]
    fn this_is_what_it_looks_like() {
        assert_eq!(
            text(&drawn(100, 11, true)),
            [
                "cluster c, engine primary-backup; q ends it",
                "view 6, lease 20.0 ms; node 1 leads, for 10.0 s; data held by 2 nodes",
                "",
                "node  state    role     view  requests/s  replies/s  applied  lag  fabric clients  up to 99k/s",
                "   0  gone     -           -           -          -        -    -               -                 █",
                "   1  running  primary     6         99k        99k    64233    0               1                 ·█",
                "   2  running  backup      6           0          0    64230    3               1                 ··",
                "",
                "   ago  change                         view  view decided  took over  first reply",
                "10.0 s  node 0 died, node 1 took over     6       10.0 us    18.2 us      22.7 us",
                "",
            ]
        );
        let wide = text(&drawn(180, 11, true));
        assert!(
            wide[3].ends_with("fabric clients  requests/s, up to 99k") && wide[3].contains("lease checks/s") && wide[4].ends_with('█'),
            "{wide:?}"
        );
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        let style = |buffer: &Buffer| (buffer[(6, 4)].symbol().to_owned(), buffer[(6, 4)].fg);
        assert_eq!(style(&drawn(100, 11, true)), ("g".into(), style::Color::Red));
        let plain = drawn(100, 11, false);
        assert_eq!(style(&plain), ("g".into(), style::Color::Reset));
        assert!(plain.content().iter().all(|cell| cell.modifier.is_empty() && cell.fg == style::Color::Reset));
    }

    #[test]
    fn it_fits_on_any_screen() {
        for width in (0..30).chain([80, 500]) {
            for height in (0..12).chain([100]) {
                let shown = text(&drawn(width, height, true));
                assert_eq!(shown.len(), usize::from(height), "{width} x {height}");
            }
        }
        assert_eq!(text(&drawn(4, 1, true)), ["clus"]);
    }
}
