//! A progress bar over planned time, on standard error.
//!
//! Every measurement has a planned length, so the bar moves evenly and can say what is left. On a
//! terminal one line is redrawn; elsewhere each measurement's experiment is named once, so that a
//! log stays short. Drawing costs one write and is skipped unless 100 ms have passed.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const BAR: usize = 24;
const REDRAW: Duration = Duration::from_millis(100);

/// Columns of the terminal that standard error is, where it does not say.
const WIDTH: usize = 80;

/// The bar. `planned` is the sum of what [`Progress::step`] will be given.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    planned: Duration,
    done: Duration,
    step: Duration,
    step_began: Instant,
    label: String,
    stage: String,
    drawn: Option<Instant>,
}

impl Progress {
    /// An empty bar for work that is planned to take `planned`.
    pub(crate) fn new(planned: Duration) -> Progress {
        Progress {
            terminal: std::io::stderr().is_terminal(),
            planned,
            done: Duration::ZERO,
            step: Duration::ZERO,
            step_began: Instant::now(),
            label: String::new(),
            stage: String::new(),
            drawn: None,
        }
    }

    /// Names the experiment that the next steps belong to.
    pub(crate) fn stage(&mut self, number: usize, of: usize, name: &str) {
        self.stage = format!("({number}/{of}) {name}");
        if !self.terminal {
            eprintln!("{} …", self.stage);
        }
    }

    /// Ends the step before and begins one that is planned to take `planned`.
    pub(crate) fn step(&mut self, label: &str, planned: Duration) {
        self.done += self.step;
        self.step = planned;
        self.step_began = Instant::now();
        self.label = label.to_owned();
        self.drawn = None;
        self.tick();
    }

    /// Redraws the bar if it is time to.
    pub(crate) fn tick(&mut self) {
        if !self.terminal || self.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let done = self.done + self.step_began.elapsed().min(self.step);
        let line = bar_line(
            done,
            self.planned,
            &format!("{}: {}", self.stage, self.label),
            columns(),
        );
        // A bar that cannot be drawn is no reason to stop measuring.
        let _ =
            write!(std::io::stderr(), "\r\x1b[2K{line}").and_then(|()| std::io::stderr().flush());
    }

    /// Removes the bar from the terminal so that other output can be printed.
    pub(crate) fn clear(&mut self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K").and_then(|()| std::io::stderr().flush());
        }
        self.drawn = None;
    }
}

fn columns() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => WIDTH,
    }
}

/// A line that a terminal of so many columns does not wrap.
fn bar_line(done: Duration, planned: Duration, label: &str, columns: usize) -> String {
    let share = if planned.is_zero() {
        0.0
    } else {
        (done.as_secs_f64() / planned.as_secs_f64()).min(1.0)
    };
    let filled = (share * BAR as f64) as usize;
    let left = planned.saturating_sub(done).as_secs();
    let line = format!(
        "[{}{}] {:3.0} %  {left:2} s left  {label}",
        "#".repeat(filled),
        "·".repeat(BAR - filled),
        share * 100.0
    );
    line.chars().take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_never_exceeds_its_width() {
        let second = Duration::from_secs(1);
        for (done, planned) in [(0, 0), (0, 10), (5, 10), (10, 10), (99, 10)] {
            let line = bar_line(second * done, second * planned, &"x".repeat(200), 80);
            assert_eq!(
                line.chars().take_while(|&c| c != ']').count(),
                BAR + 1,
                "{line}"
            );
            assert!(line.chars().count() <= 79);
        }
    }
}
