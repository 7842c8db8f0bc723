//! The loop of an open load of spin requests: fire what is due, take replies in whatever order they come.
//!
//! Like `engine`, but for requests that differ from each other: each has a slot with the time it was meant to leave, and
//! its tag names the slot and the slot's generation, so that a reply finds its request in O(1) and one that was not asked
//! for is found out. Latency counts from the intended time. Requests that were meant to leave within the time measured
//! are counted, and their replies until the drain has ended; the others are `unanswered`.
//!
//! A request is one `write`, a reply one `read`. Requests that a socket does not take wait in memory, 24 bytes each.

use super::connect;
use super::meter::{BURST, Meter, NAP, PRIME, SPIN, nanos};
use super::outcome::{GroupOutcome, Outcome};
use super::plan::{Group, Plan, Work};
use super::random::Random;
use super::spin_plan::{Arrivals, Distribution, SpinPlan};
use crate::os::{self, ENDED, Epoll, Ready};
use crate::spin::{Frames, MAX_SERVICE, Request};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The class of requests that count for nothing: the first ones, and the hog.
const UNCOUNTED: usize = usize::MAX;

/// A request without a reply, or a free place.
struct Slot {
    /// Changes with each use; the upper half of the tag.
    generation: u32,
    class: usize,
    intended: u64,
    request: Request,
    busy: bool,
}

struct Connection {
    /// None once it has failed.
    stream: Option<TcpStream>,
    frames: Frames,
    /// What the socket has not taken yet.
    owed: Vec<u8>,
    /// The first request has been answered.
    primed: bool,
}

pub(crate) struct Engine<'p> {
    plan: &'p SpinPlan,
    meter: Meter,
    epoll: Epoll,
    connections: Vec<Connection>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    outcomes: Vec<GroupOutcome>,
    random: Random,
    scratch: Box<[u8]>,
    /// The connection of the next request.
    turn: usize,
    next_due: f64,
    /// Requests that were meant to leave from here on are counted.
    from: u64,
    /// No requests are meant to leave from here on.
    to: u64,
    /// Counted requests without a reply, and first requests.
    waiting: usize,
}

impl<'p> Engine<'p> {
    /// Connects.
    pub(crate) fn new(plan: &'p SpinPlan) -> io::Result<Engine<'p>> {
        let meter = Meter::new(plan.stop.as_ref(), plan.server_pid)?;
        let classes = plan.classes.iter();
        let mut outcomes: Vec<_> = classes
            .map(|c| GroupOutcome::new(c.label.clone()))
            .collect();
        let wanted = plan.connections + usize::from(plan.hog.is_some());
        let group = Group::new(plan.target, wanted, "");
        // Only the groups and the patience of it matter while connecting.
        let mut connecting = Plan::new(vec![group], Work::Matrix { n: 1 }, plan.duration);
        connecting.stop.clone_from(&plan.stop);
        let streams = connect::establish(&connecting, &mut outcomes[..1])?;
        let epoll = Epoll::new(64)?;
        for (i, stream) in streams.iter().enumerate() {
            if let Some(stream) = stream {
                epoll.add(stream, i as u64, os::EDGE)?;
            }
        }
        let connection = |stream| Connection {
            stream,
            frames: Frames::default(),
            owed: Vec::new(),
            primed: false,
        };
        Ok(Engine {
            plan,
            meter,
            epoll,
            connections: streams.into_iter().map(connection).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            outcomes,
            random: Random::new(plan.seed),
            scratch: vec![0; 64 * 1024].into_boxed_slice(),
            turn: 0,
            next_due: f64::INFINITY,
            from: u64::MAX,
            to: u64::MAX,
            waiting: 0,
        })
    }

    /// Primes, warms up, measures, drains.
    pub(crate) fn run(mut self) -> io::Result<Outcome> {
        self.prime()?;
        if let Some(hog) = self.plan.hog {
            let last = self.connections.len() - 1;
            self.ask(last, UNCOUNTED, nanos(hog.service), hog.level, 0);
        }
        let begin = self.meter.now();
        self.from = begin + nanos(self.plan.warmup);
        self.to = self.from + nanos(self.plan.duration);
        self.next_due = begin as f64;
        let mut going = self.drive(self.from)?;
        let before = self.meter.used();
        going = going && self.drive(self.to)?;
        while going && self.next_due.is_finite() {
            // Due, and not sent yet because the client was late: they count.
            self.fire();
        }
        let end = self.meter.now();
        let after = self.meter.used();
        self.next_due = f64::INFINITY;
        let elapsed = Duration::from_nanos(end.saturating_sub(self.from));
        if going {
            self.drive(end + nanos(self.plan.drain))?;
        }
        self.count_unanswered(elapsed);
        let (server_cpu, client_cpu) = before.until(&after);
        Ok(Outcome {
            connections: self.outcomes.first().map_or(0, |o| o.connections),
            elapsed,
            server_cpu,
            client_cpu,
            stopped: self.meter.is_stopped(),
            groups: self.outcomes,
        })
    }

    /// Has one request answered on every connection, so that load meets a server that serves them all.
    fn prime(&mut self) -> io::Result<()> {
        let level = self.plan.classes.iter().map(|c| c.level).min().unwrap_or(0);
        self.to = 0;
        for at in 0..self.connections.len() {
            if self.connections[at].stream.is_some() {
                self.waiting += 1;
                self.ask(at, UNCOUNTED, 0, level, 0);
            }
        }
        let begin = self.meter.now();
        self.drive(begin + PRIME)?;
        for at in 0..self.connections.len() {
            if !self.connections[at].primed && !self.meter.is_stopped() {
                self.fail(at, || "the first reply did not come in time".into());
            }
        }
        let alive = self.connections.iter().take(self.plan.connections);
        let alive = alive.filter(|c| c.stream.is_some()).count();
        for outcome in &mut self.outcomes {
            outcome.connections = alive;
        }
        self.waiting = 0;
        Ok(())
    }

    /// Runs until `end`; false if it ended early because of `stop` or because no connection is left. Without anything
    /// more to send it also ends, with true, when nothing is waited for.
    fn drive(&mut self, end: u64) -> io::Result<bool> {
        loop {
            self.fire();
            let now = self.meter.now();
            if now >= end || (self.next_due.is_infinite() && self.waiting == 0) {
                return Ok(true);
            }
            if self.meter.is_stopped() || self.connections.iter().all(|c| c.stream.is_none()) {
                return Ok(false);
            }
            // A float that is too large saturates.
            let free = (self.next_due as u64)
                .saturating_sub(now)
                .saturating_sub(SPIN);
            let nap = NAP.min(end - now).min(free);
            let n = self.epoll.wait(Duration::from_nanos(nap))?;
            for i in 0..n {
                self.handle(self.epoll.ready(i));
                self.fire();
            }
        }
    }

    /// Sends what is due, up to a burst.
    fn fire(&mut self) {
        for _ in 0..BURST {
            let due = self.next_due as u64;
            if due >= self.to {
                self.next_due = f64::INFINITY;
            }
            let now = self.meter.now();
            if self.next_due.is_infinite() || due > now {
                return;
            }
            let (class, service) = self.draw();
            let level = self.plan.classes[class].level;
            let at = self.turn;
            self.turn = (self.turn + 1) % self.plan.connections;
            if self.connections[at].stream.is_some() {
                if due >= self.from {
                    self.waiting += 1;
                    let outcome = &mut self.outcomes[class];
                    outcome.send_lag.saturating_record((now - due).max(1));
                    outcome.delayed += u64::from(!self.connections[at].owed.is_empty());
                }
                self.ask(at, class, service, level, due);
            }
        }
    }

    /// The class and the service time of the next request; moves on to the one after it.
    fn draw(&mut self) -> (usize, u64) {
        let gap = match self.plan.arrivals {
            Arrivals::Poisson => self.random.exponential(),
            Arrivals::Even => 1.0,
        };
        self.next_due += gap * 1e9 / self.plan.per_second;
        let mut at = self.random.uniform();
        let classes = &self.plan.classes;
        let mut class = 0;
        while class + 1 < classes.len() && at >= classes[class].share {
            at -= classes[class].share;
            class += 1;
        }
        let mean = nanos(classes[class].service);
        let service = match classes[class].distribution {
            Distribution::Fixed => mean,
            Distribution::Exponential => (mean as f64 * self.random.exponential()) as u64,
        };
        (class, service.min(MAX_SERVICE))
    }

    /// Writes a request, as far as the socket takes it.
    fn ask(&mut self, at: usize, class: usize, service: u64, level: u8, intended: u64) {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot {
                generation: 0,
                class,
                intended,
                request: Request {
                    service,
                    level,
                    tag: 0,
                },
                busy: false,
            });
        }
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.class = class;
        slot.intended = intended;
        slot.busy = true;
        slot.request = Request {
            service,
            level,
            tag: u64::from(slot.generation) << 32 | index as u64,
        };
        let frame = slot.request.bytes();
        let c = &mut self.connections[at];
        c.owed.extend_from_slice(&frame);
        self.flush(at);
    }

    fn flush(&mut self, at: usize) {
        let c = &mut self.connections[at];
        let Some(mut stream) = c.stream.as_ref() else {
            return;
        };
        while !c.owed.is_empty() {
            match stream.write(&c.owed) {
                Ok(n) => drop(c.owed.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return self.fail(at, || format!("connection lost while sending: {error}"));
                }
            }
        }
    }

    /// Reads all that has arrived on a connection, then sends what it owes.
    fn handle(&mut self, ready: Ready) {
        let at = ready.token as usize;
        let ended = ready.flags & ENDED != 0;
        if ended || ready.flags & os::READABLE != 0 {
            // Until the end of what there is: the edge will not be reported again.
            while let Some(mut stream) = self.connections[at].stream.as_ref() {
                match stream.read(&mut self.scratch) {
                    Ok(0) => self.fail(at, || "the server closed the connection".into()),
                    Ok(n) => {
                        let now = self.meter.now();
                        if let Err(why) = self.receive(at, n, now) {
                            self.fail(at, || why);
                        }
                        if n < self.scratch.len() && !ended {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => self.fail(at, || format!("connection lost: {error}")),
                }
            }
        }
        if !self.connections[at].owed.is_empty() {
            self.flush(at);
        }
    }

    /// Takes the `n` bytes in the scratch buffer as the next ones of a connection.
    fn receive(&mut self, at: usize, n: usize, now: u64) -> Result<(), String> {
        let c = &mut self.connections[at];
        let mut chunk = &self.scratch[..n];
        loop {
            let reply = c.frames.next(&mut chunk);
            let Some(reply) = reply.map_err(|error| format!("wrong reply: {error}"))? else {
                return Ok(());
            };
            let index = reply.tag as u32 as usize;
            let slot = self.slots.get_mut(index);
            let Some(slot) = slot.filter(|slot| slot.busy && slot.request == reply) else {
                return Err(format!(
                    "wrong reply: it is none of the requests without one (tag {:#x})",
                    reply.tag
                ));
            };
            slot.busy = false;
            self.free.push(index);
            if slot.class == UNCOUNTED {
                if !c.primed {
                    c.primed = true;
                    self.waiting -= 1;
                }
                continue;
            }
            if slot.intended >= self.from {
                self.waiting -= 1;
                let outcome = &mut self.outcomes[slot.class];
                outcome.requests += 1;
                outcome.bytes += crate::spin::FRAME as u64;
                let latency = now.saturating_sub(slot.intended).max(1);
                outcome.latency.saturating_record(latency);
            }
        }
    }

    /// Closes a connection for good and counts why, once.
    fn fail(&mut self, at: usize, why: impl FnOnce() -> String) {
        let c = &mut self.connections[at];
        if c.stream.take().is_none() {
            return;
        }
        if !c.primed {
            self.waiting = self.waiting.saturating_sub(1);
        }
        let target = self.plan.target;
        self.outcomes[0].error(|| format!("{target}: {}", why()));
    }

    fn count_unanswered(&mut self, elapsed: Duration) {
        let now = self.meter.now();
        for outcome in &mut self.outcomes {
            outcome.elapsed = elapsed;
        }
        let waiting = self.slots.iter().filter(|slot| slot.busy);
        for slot in waiting.filter(|s| s.class != UNCOUNTED && s.intended >= self.from) {
            let outcome = &mut self.outcomes[slot.class];
            outcome.unanswered += 1;
            let age = Duration::from_nanos(now.saturating_sub(slot.intended));
            outcome.oldest_unanswered = outcome.oldest_unanswered.max(age);
        }
    }
}
