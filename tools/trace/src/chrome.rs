//! Writes a recording as Chrome trace events, the format of Perfetto and `chrome://tracing`.
//!
//! ```text
//!  track "vCPU 0"    ┌ awake ────────────────────────┐             ┌ awake ──── …
//!                    │ ┌ poll ───┐   ┌ poll ───┐     │   parked:   │
//!  instants          ▲ I/O   ▲ spawn     ▲ stolen        nothing
//!  track "other threads" ▲ wake from another thread
//! ```
//!
//! An arrow (a flow) goes from each wake on a vCPU to the poll that it causes. A poll is named by
//! the spawn site of its coroutine; its category is its level, and its colour (in
//! `chrome://tracing`) is shared by eight adjacent levels.
//!
//! Begin and end entries are balanced on each track, even if events were lost. A poll that was
//! under way when the recording began is shown from the start of the recording. A poll that is
//! under way when the recording ends is shown until its end. If the end of a poll was lost, the
//! next poll on that track closes it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use upshift_core::{CoroutineId, Level, MAX_VCPUS, Step};

use crate::event::{Coroutine, Event, EventKind};

/// Colours that `chrome://tracing` knows by name, for eight levels each.
const COLOURS: [&str; 8] = [
    "terrible",
    "bad",
    "yellow",
    "olive",
    "good",
    "rail_animation",
    "rail_idle",
    "grey",
];

/// A text that is written as the contents of a JSON string, without the quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                // Includes the control characters that JSON allows but terminals interpret.
                c if c.is_control() => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Nanoseconds, which are written as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// The open entries on the track of a vCPU.
#[derive(Clone, Copy, Default)]
struct Track {
    /// Set once the vCPU has acted in an event.
    has_acted: bool,
    is_awake: bool,
    /// Set until the vCPU's first poll is seen, if the vCPU was awake when the recording began,
    /// because a poll may have been under way at that time.
    may_have_poll: bool,
    poll: Option<CoroutineId>,
}

/// A writer of events as they arrive, ordered by time.
pub struct Writer<W: Write> {
    out: W,
    tracks: Vec<Track>,
    /// Arrows that end at the next poll of a coroutine.
    woken: HashMap<CoroutineId, u64>,
    /// Number of arrows so far; also the id of the last arrow.
    arrows: u64,
    /// Time of the last event, in ns.
    last_time: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a file, with tracks for `vcpus` vCPUs; further tracks are added at the first event of
    /// their vCPU.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn new(mut out: W, name: &str, vcpus: u32) -> io::Result<Writer<W>> {
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n\
             {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{{\"name\":\"{}\"}}}},\n\
             {{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":0,\"args\":{{\"name\":\"other threads\"}}}}",
            Escaped(name)
        )?;
        let mut writer = Writer {
            out,
            tracks: Vec::new(),
            woken: HashMap::new(),
            arrows: 0,
            last_time: 0,
        };
        if let Some(last) = vcpus.min(MAX_VCPUS as u32).checked_sub(1) {
            writer.ensure_vcpu(last)?;
        }
        Ok(writer)
    }

    /// Writes an event whose coroutine was spawned at `site`.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer.
    pub fn event(&mut self, event: &Event, site: &str) -> io::Result<()> {
        let Some(Event { vcpu, kind, .. }) = event.checked() else {
            return Ok(());
        };
        // Moves a late event forward, so that times never decrease.
        let at = event.at.max(self.last_time);
        self.last_time = at;
        self.ensure_vcpu(vcpu)?;
        // Finds the vCPU whose thread acted, and whether that vCPU must have been awake before.
        // Only `Unparked` starts from sleep.
        let (actor, was_awake) = match kind {
            EventKind::Unparked => (Some(vcpu), false),
            EventKind::Parked | EventKind::Arrived(_) => (Some(vcpu), true),
            // Another thread reports this step, but the step ends a poll of this vCPU.
            EventKind::Coroutine(Step::Suspended, _) => (Some(vcpu), true),
            EventKind::Coroutine(_, coroutine) => (coroutine.by, true),
        };
        if let Some(actor) = actor {
            self.ensure_vcpu(actor)?;
            let is_new = !std::mem::replace(&mut self.tracks[actor as usize].has_acted, true);
            if is_new && was_awake {
                self.wake_up(actor, 0)?;
            }
        }
        match kind {
            EventKind::Unparked => self.wake_up(vcpu, at),
            EventKind::Parked => {
                self.end_poll(vcpu, at, "lost")?;
                self.fall_asleep(vcpu, at)
            }
            EventKind::Arrived(count) => {
                self.begin(at, vcpu, 'i', "I/O")?;
                write!(
                    self.out,
                    ",\"s\":\"t\",\"args\":{{\"completions\":{count}}}}}"
                )
            }
            EventKind::Coroutine(step, coroutine) => self.step(at, vcpu, step, coroutine, site),
        }
    }

    /// Ends the open entries at `length` ns, and the file, which reports the number of `lost`
    /// events. Returns the underlying writer.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer.
    pub fn finish(mut self, length: u64, lost: u64) -> io::Result<W> {
        let at = length.max(self.last_time);
        for vcpu in 0..self.tracks.len() as u32 {
            self.end_poll(vcpu, at, "the recording's end")?;
            self.fall_asleep(vcpu, at)?;
        }
        write!(self.out, "\n],\"otherData\":{{\"lost\":{lost}}}}}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Names the tracks up to the track of a vCPU.
    fn ensure_vcpu(&mut self, vcpu: u32) -> io::Result<()> {
        while self.tracks.len() <= vcpu as usize {
            let number = self.tracks.len();
            self.tracks.push(Track::default());
            let tid = number + 1;
            write!(
                self.out,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{tid},\"args\":{{\"name\":\"vCPU {number}\"}}}},\n\
                 {{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":1,\"tid\":{tid},\"args\":{{\"sort_index\":{tid}}}}}"
            )?;
        }
        Ok(())
    }

    /// Writes the beginning of an entry, up to its arguments.
    fn begin(&mut self, at: u64, vcpu: u32, phase: char, name: &str) -> io::Result<()> {
        self.begin_on(at, u64::from(vcpu) + 1, phase, name)
    }

    fn begin_on(&mut self, at: u64, tid: u64, phase: char, name: &str) -> io::Result<()> {
        write!(
            self.out,
            ",\n{{\"ph\":\"{phase}\",\"pid\":1,\"tid\":{tid},\"ts\":{},\"name\":\"{}\"",
            Micros(at),
            Escaped(name)
        )
    }

    fn wake_up(&mut self, vcpu: u32, at: u64) -> io::Result<()> {
        if std::mem::replace(&mut self.tracks[vcpu as usize].is_awake, true) {
            return Ok(());
        }
        self.tracks[vcpu as usize].may_have_poll = at == 0;
        self.begin(at, vcpu, 'B', "awake")?;
        write!(self.out, ",\"cat\":\"vcpu\",\"cname\":\"white\"}}")
    }

    fn fall_asleep(&mut self, vcpu: u32, at: u64) -> io::Result<()> {
        if !std::mem::replace(&mut self.tracks[vcpu as usize].is_awake, false) {
            return Ok(());
        }
        self.end(vcpu, at)?;
        write!(self.out, "}}")
    }

    fn end(&mut self, vcpu: u32, at: u64) -> io::Result<()> {
        let tid = u64::from(vcpu) + 1;
        write!(
            self.out,
            ",\n{{\"ph\":\"E\",\"pid\":1,\"tid\":{tid},\"ts\":{}",
            Micros(at)
        )
    }

    fn end_poll(&mut self, vcpu: u32, at: u64, how: &str) -> io::Result<()> {
        if self.tracks[vcpu as usize].poll.take().is_none() {
            return Ok(());
        }
        self.end(vcpu, at)?;
        write!(self.out, ",\"args\":{{\"until\":\"{how}\"}}}}")
    }

    fn begin_poll(
        &mut self,
        at: u64,
        vcpu: u32,
        coroutine: Coroutine,
        site: &str,
        is_resumed: bool,
    ) -> io::Result<()> {
        self.end_poll(vcpu, at, "lost")?;
        self.wake_up(vcpu, at)?;
        self.begin(at, vcpu, 'B', site)?;
        let Coroutine { id, level, .. } = coroutine;
        write!(
            self.out,
            ",\"cat\":\"level {level}\",\"cname\":\"{}\",\"args\":{{\"coroutine\":\"{id}\",\"level\":{level},\"resumed\":{is_resumed}}}}}",
            colour(level)
        )?;
        let track = &mut self.tracks[vcpu as usize];
        track.poll = Some(id);
        track.may_have_poll = false;
        if let Some(arrow) = self.woken.remove(&id) {
            self.begin(at, vcpu, 'f', "wake")?;
            write!(self.out, ",\"cat\":\"wake\",\"bp\":\"e\",\"id\":{arrow}}}")?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        at: u64,
        vcpu: u32,
        step: Step,
        coroutine: Coroutine,
        site: &str,
    ) -> io::Result<()> {
        let how = match step {
            Step::Polled => return self.begin_poll(at, vcpu, coroutine, site, false),
            Step::Resumed => return self.begin_poll(at, vcpu, coroutine, site, true),
            Step::Ready => return self.ready(at, vcpu, coroutine, site),
            Step::Spawned => return self.instant(at, coroutine, "spawn", site, vcpu),
            Step::Stolen { from } => {
                return self.instant(at, coroutine, "stolen", site, from as u32);
            }
            Step::Yielded => "yielded",
            Step::Blocked => "blocked",
            Step::Suspended => "suspended",
            Step::Exited => "exited",
        };
        let track = self.tracks[vcpu as usize];
        if track.is_awake && track.may_have_poll {
            // The poll was under way when the recording began.
            self.begin_poll(0, vcpu, coroutine, site, true)?;
        }
        if step == Step::Exited {
            self.woken.remove(&coroutine.id);
        }
        // The end of a poll whose begin was lost, or of a coroutine that was cancelled between
        // polls, is ignored.
        if self.tracks[vcpu as usize].poll == Some(coroutine.id) {
            self.end_poll(vcpu, at, how)?;
        }
        Ok(())
    }

    fn ready(&mut self, at: u64, vcpu: u32, coroutine: Coroutine, site: &str) -> io::Result<()> {
        let Some(by) = coroutine.by else {
            return self.instant(at, coroutine, "wake", site, vcpu);
        };
        if self.tracks[by as usize].is_awake {
            // An arrow begins in the open entry on the waker's track.
            self.arrows += 1;
            let arrow = self.arrows;
            self.begin(at, by, 's', "wake")?;
            write!(self.out, ",\"cat\":\"wake\",\"id\":{arrow}}}")?;
            self.woken.insert(coroutine.id, arrow);
        }
        Ok(())
    }

    /// Writes an instant on the track of the thread that acted.
    fn instant(
        &mut self,
        at: u64,
        coroutine: Coroutine,
        name: &str,
        site: &str,
        vcpu: u32,
    ) -> io::Result<()> {
        let Coroutine { id, level, by, .. } = coroutine;
        self.begin_on(at, by.map_or(0, |by| u64::from(by) + 1), 'i', name)?;
        write!(
            self.out,
            ",\"s\":\"t\",\"cat\":\"level {level}\",\"args\":{{\"coroutine\":\"{id}\",\"level\":{level},\"spawned\":\"{}\",\"vcpu\":{vcpu}}}}}",
            Escaped(site)
        )
    }
}

fn colour(level: Level) -> &'static str {
    COLOURS[usize::from(level.get()) / 8 % COLOURS.len()]
}
