//! Runs the interactive view: queries the process, handles keys, and draws the current page.
//!
//! One thread queries the process once per interval and waits for keys in between. A process that
//! does not answer delays the keys by two seconds at most, and ends the view.

use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use upshift::observe::View;

use super::attach::{self, Peer};
use super::figures::Frame;
use super::machine::{self, Machine};
use super::screen::Screen;
use super::settings::{Bottom, Settings, Sort};
use super::{draw, draw_machine};

/// Longest wait for a key, and so for noticing a signal.
const KEY_TIMEOUT: Duration = Duration::from_millis(200);
/// Intervals in ms that + and - step through.
const INTERVALS: [u64; 6] = [100, 250, 500, 1000, 2000, 5000];

/// The first page.
pub(super) enum Start {
    Choose,
    Process(Box<Peer>),
    Machine,
}

enum Page {
    Choose {
        peers: Vec<Peer>,
        selected: usize,
        /// Set if a daemon listens.
        has_machine: bool,
    },
    Process {
        peer: Box<Peer>,
        last: Box<View>,
        frame: Option<Box<Frame>>,
    },
    Machine {
        last: Option<Box<Machine>>,
        now: Box<Machine>,
    },
}

impl Page {
    fn choose() -> Result<Page> {
        Ok(Page::Choose {
            peers: attach::peers()?,
            selected: 0,
            has_machine: machine::fetch().is_ok(),
        })
    }

    fn process(mut peer: Box<Peer>) -> Result<Page> {
        let last = Box::new(peer.fetch()?);
        Ok(Page::Process {
            peer,
            last,
            frame: None,
        })
    }

    fn machine() -> Result<Page> {
        Ok(Page::Machine {
            last: None,
            now: Box::new(machine::fetch()?),
        })
    }

    fn refresh(&mut self) -> Result<()> {
        match self {
            Page::Choose {
                peers,
                selected,
                has_machine,
            } => {
                *peers = attach::peers()?;
                *has_machine = machine::fetch().is_ok();
                let rows = peers.len() + usize::from(*has_machine);
                *selected = (*selected).min(rows.saturating_sub(1));
            }
            Page::Process { peer, last, frame } => {
                let now = Box::new(peer.fetch()?);
                *frame = Some(Box::new(Frame::new(peer, last, &now)));
                *last = now;
            }
            Page::Machine { last, now } => {
                let next = Box::new(machine::fetch()?);
                *last = Some(std::mem::replace(now, next));
            }
        }
        Ok(())
    }
}

/// Runs until the user quits.
pub(super) fn run(start: Start, interval: Duration) -> Result<()> {
    let mut page = match start {
        Start::Choose => Page::choose()?,
        Start::Process(peer) => Page::process(peer)?,
        Start::Machine => Page::machine()?,
    };
    let mut settings = Settings {
        interval,
        paused: false,
        help: false,
        sort: Sort::Level,
        bottom: Bottom::Polls,
        scroll: 0,
    };
    let mut screen = Screen::acquire()?;
    // The first figures arrive early.
    let mut due = Instant::now() + interval.min(Duration::from_millis(300));
    while !screen.has_ended() {
        if !settings.paused && Instant::now() >= due {
            page.refresh()?;
            due = Instant::now() + settings.interval;
        }
        screen.draw(|to| show(to, &page, &settings))?;
        let wait = due
            .saturating_duration_since(Instant::now())
            .min(KEY_TIMEOUT);
        let wait = if settings.paused { KEY_TIMEOUT } else { wait };
        if !screen.wait(wait) {
            return Ok(());
        }
        if !event::poll(Duration::ZERO)? {
            continue;
        }
        // A resize is an event and causes a redraw.
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match handle_key(key, &mut page, &mut settings)? {
                Next::Stay => {}
                Next::Quit => return Ok(()),
                Next::Go(other) => {
                    page = *other;
                    settings.scroll = 0;
                    due = Instant::now() + interval.min(Duration::from_millis(300));
                }
            }
        }
    }
    Ok(())
}

fn show(to: &mut ratatui::Frame<'_>, page: &Page, settings: &Settings) {
    if !draw::check_size(to) {
        return;
    }
    match page {
        Page::Choose {
            peers,
            selected,
            has_machine,
        } => draw_machine::choose(to, peers, *has_machine, *selected),
        Page::Process { peer, frame, .. } => match frame {
            Some(frame) => draw::process(to, frame, settings),
            None => draw::first_interval(to, peer.pid),
        },
        Page::Machine { last, now } => draw_machine::machine(to, now, last.as_deref(), settings),
    }
    if settings.help {
        draw::help(to);
    }
}

/// Effect of a key.
enum Next {
    Stay,
    Quit,
    Go(Box<Page>),
}

fn handle_key(key: KeyEvent, page: &mut Page, settings: &mut Settings) -> Result<Next> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if settings.help && key.code != KeyCode::Char('q') {
        settings.help = false;
        return Ok(Next::Stay);
    }
    match key.code {
        KeyCode::Char('c') if control => return Ok(Next::Quit),
        KeyCode::Char('q') | KeyCode::Esc => return Ok(Next::Quit),
        KeyCode::Char('?' | 'h') => settings.help = true,
        KeyCode::Char('p' | ' ') => settings.paused = !settings.paused,
        KeyCode::Char('s') => settings.sort = settings.sort.next(),
        KeyCode::Char('r') => {
            settings.bottom = match settings.bottom {
                Bottom::Polls => Bottom::Routes,
                Bottom::Routes => Bottom::Polls,
            };
            settings.scroll = 0;
        }
        KeyCode::Char('+') => settings.interval = step(settings.interval, true),
        KeyCode::Char('-') => settings.interval = step(settings.interval, false),
        KeyCode::Char('m') if !matches!(page, Page::Machine { .. }) => {
            // Without a daemon the page does not change.
            if let Ok(machine) = Page::machine() {
                return Ok(Next::Go(Box::new(machine)));
            }
        }
        KeyCode::Char('l') | KeyCode::Backspace if !matches!(page, Page::Choose { .. }) => {
            return Ok(Next::Go(Box::new(Page::choose()?)));
        }
        code => return handle_arrow(code, page, settings),
    }
    Ok(Next::Stay)
}

fn handle_arrow(code: KeyCode, page: &mut Page, settings: &mut Settings) -> Result<Next> {
    let Page::Choose {
        peers,
        selected,
        has_machine,
    } = page
    else {
        match code {
            KeyCode::Down => settings.scroll = settings.scroll.saturating_add(1).min(64),
            KeyCode::Up => settings.scroll = settings.scroll.saturating_sub(1),
            KeyCode::Home => settings.scroll = 0,
            _ => {}
        }
        return Ok(Next::Stay);
    };
    let rows = peers.len() + usize::from(*has_machine);
    match code {
        KeyCode::Down if *selected + 1 < rows => *selected += 1,
        KeyCode::Up => *selected = selected.saturating_sub(1),
        KeyCode::Enter if *selected < peers.len() => {
            let peer = Box::new(peers.remove(*selected));
            // A process that has just ended must not end the view.
            let next = Page::process(peer).or_else(|_| Page::choose())?;
            return Ok(Next::Go(Box::new(next)));
        }
        KeyCode::Enter if *selected < rows => return Ok(Next::Go(Box::new(Page::machine()?))),
        _ => {}
    }
    Ok(Next::Stay)
}

fn step(interval: Duration, longer: bool) -> Duration {
    let now = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let mut steps = INTERVALS.into_iter();
    let next = if longer {
        steps.find(|step| *step > now)
    } else {
        steps.rev().find(|step| *step < now)
    };
    next.map_or(interval, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_go_up_and_down_and_stop_at_the_ends() {
        let ms = Duration::from_millis;
        assert_eq!(step(ms(1000), true), ms(2000));
        assert_eq!(step(ms(1000), false), ms(500));
        assert_eq!(step(ms(700), false), ms(500));
        assert_eq!(step(ms(5000), true), ms(5000));
        assert_eq!(step(ms(100), false), ms(100));
    }
}
