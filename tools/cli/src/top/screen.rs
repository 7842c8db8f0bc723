//! Takes the terminal for drawing, and always restores it, even after a panic or SIGTERM.

use std::io::{self, Stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The terminal, while this command draws on it.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Set by SIGTERM, SIGHUP and SIGINT.
    ended: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn acquire() -> Result<Screen> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
            signal_hook::consts::SIGINT,
        ] {
            signal_hook::flag::register(signal, ended.clone()).context("cannot handle signals")?;
        }
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Restores the terminal first, so that the message can be read.
            restore();
            before(panic);
        }));
        enable_raw_mode().context("cannot take the terminal")?;
        let taken = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(terminal) => Ok(Screen { terminal, ended }),
            Err(error) => {
                restore();
                Err(error).context("cannot draw on the terminal")
            }
        }
    }

    pub(super) fn draw(&mut self, page: impl FnOnce(&mut ratatui::Frame<'_>)) -> Result<()> {
        self.terminal
            .draw(page)
            .map(drop)
            .context("cannot draw on the terminal")
    }

    /// Waits for input, a signal or the end of `time`. Returns false if the terminal is gone, which
    /// the event source would take for endless input.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let stdin = io::stdin();
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        // Interrupted or not, the available input is checked.
        let _ = poll(&mut input, time.as_ref());
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        !input[0].revents().intersects(gone)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. A failure here means that the terminal no longer exists.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}
