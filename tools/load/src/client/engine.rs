//! The loop of the client: fire what is due, wait, read replies, send the next requests.
//!
//! All times inside are ns since the start of the run. Every socket is registered once, edge-triggered: a read that
//! does not fill the buffer has emptied the socket, and a write is tried at once and only then waits for the socket.
//! A turn costs one `epoll_wait`; a request one `write` and one `read`. Nothing is allocated after connecting, but for
//! HTTP heads cut by the end of a read and for error messages.

use super::connect;
use super::connection::Connection;
use super::meter::{BURST, Meter, NAP, PRIME, SPIN, nanos};
use super::outcome::{GroupOutcome, Outcome};
use super::plan::{Phase, Plan, Progress, Work};
use super::reply::{self, Found, HeadMemo, Template};
use super::schedule::Schedule;
use super::{OPEN_DEPTH, Pace};
use crate::os::{self, ENDED, Epoll, Ready};
use std::io::{self, Read};
use std::time::Duration;

/// Time between looks at silent connections and reports of progress, in ns.
const CHECK: u64 = 100_000_000;
/// The longest wait for the last replies, in ns.
const DRAIN: u64 = 250_000_000;
/// Different matrices in use, where computing their products costs little.
const VARIANTS: usize = 8;

/// Which requests are made, and what their replies count for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// One request per connection; nothing counts but errors.
    Priming,
    /// The load.
    Running,
    /// No more requests; nothing counts.
    Draining,
}

struct Group {
    /// None in a closed loop.
    schedule: Option<Schedule>,
    /// The most requests in flight on a connection.
    depth: u64,
    /// The index of its first connection.
    first: usize,
    outcome: GroupOutcome,
}

pub(crate) struct Engine<'p> {
    plan: &'p Plan,
    meter: Meter,
    epoll: Epoll,
    groups: Vec<Group>,
    connections: Vec<Connection>,
    /// The last one is that of priming.
    templates: Vec<Template>,
    memo: HeadMemo,
    scratch: Box<[u8]>,
    /// Connections that have not failed.
    alive: usize,
    /// Requests in flight on all of them.
    outstanding: u64,
    /// The earliest send time of all schedules; `u64::MAX` in a closed loop.
    next_due: u64,
    next_check: u64,
    stage: Stage,
}

impl<'p> Engine<'p> {
    /// Connects.
    pub(crate) fn new(plan: &'p Plan) -> io::Result<Engine<'p>> {
        // Fail before connecting if the server cannot be measured.
        let meter = Meter::new(plan.stop.as_ref(), plan.server_pid)?;
        let (mut templates, per_group) = templates(plan);
        let variants = templates.len();
        templates.push(priming(plan));
        let mut outcomes: Vec<_> = plan
            .groups
            .iter()
            .map(|group| GroupOutcome::new(group.label.clone()))
            .collect();
        let mut streams = connect::establish(plan, &mut outcomes)?.into_iter();
        let epoll = Epoll::new(64)?;
        let (mut groups, mut connections) = (Vec::new(), Vec::new());
        for (i, (group, outcome)) in plan.groups.iter().zip(outcomes).enumerate() {
            groups.push(Group {
                schedule: None,
                depth: depth(plan, plan.pace_of(group)),
                first: connections.len(),
                outcome,
            });
            for (index, stream) in streams.by_ref().take(group.connections).enumerate() {
                if let Some(stream) = &stream {
                    epoll.add(stream, connections.len() as u64, os::EDGE)?;
                }
                let template = if per_group { i } else { index % variants };
                connections.push(Connection::new(stream, i, index, template));
            }
        }
        let alive = connections.iter().filter(|c| c.stream.is_some()).count();
        Ok(Engine {
            plan,
            meter,
            epoll,
            groups,
            connections,
            templates,
            memo: HeadMemo::default(),
            scratch: vec![0; 64 * 1024].into_boxed_slice(),
            alive,
            outstanding: 0,
            next_due: u64::MAX,
            next_check: 0,
            stage: Stage::Priming,
        })
    }

    /// Primes, warms up, measures, drains.
    pub(crate) fn run(mut self) -> io::Result<Outcome> {
        self.prime()?;
        let begin = self.meter.now();
        let count = self.groups.len() as f64;
        for (i, group) in self.plan.groups.iter().enumerate() {
            self.groups[i].schedule = Schedule::new(
                self.plan.pace_of(group),
                group.connections,
                begin,
                i as f64 / count,
            );
        }
        self.fire(begin);
        for at in 0..self.connections.len() {
            self.refill(at, begin);
            self.send(at, begin);
        }
        let warm = begin + nanos(self.plan.warmup);
        let mut going = self.drive(warm, Phase::Warmup)?;

        for group in &mut self.groups {
            group.outcome.restart();
        }
        let before = self.meter.used();
        let from = self.meter.now();
        if going {
            going = self.drive(from + nanos(self.plan.duration), Phase::Measure)?;
        }
        let to = self.meter.now();
        let after = self.meter.used();
        let elapsed = Duration::from_nanos(to - from);
        for group in &mut self.groups {
            group.outcome.elapsed = elapsed;
        }
        self.count_unanswered(to);
        if going && self.outstanding > 0 {
            self.stage = Stage::Draining;
            self.next_due = u64::MAX;
            self.drive(to + DRAIN, Phase::Measure)?;
        }
        let (server_cpu, client_cpu) = before.until(&after);
        Ok(Outcome {
            connections: self.groups.iter().map(|g| g.outcome.connections).sum(),
            elapsed,
            server_cpu,
            client_cpu,
            stopped: self.meter.is_stopped(),
            groups: self.groups.into_iter().map(|g| g.outcome).collect(),
        })
    }

    /// Has one request answered on every connection, so that load meets a server that serves them all.
    ///
    /// The kernel completes connections which the server has not accepted, and a server under load may not come round
    /// to accepting them for seconds: fewer connections than the plan says would be measured.
    fn prime(&mut self) -> io::Result<()> {
        let begin = self.meter.now();
        let last = self.templates.len() - 1;
        let shared = matches!(self.plan.work, Work::Matrix { .. });
        let own: Vec<usize> = self.connections.iter().map(|c| c.template).collect();
        for at in 0..self.connections.len() {
            let c = &mut self.connections[at];
            if c.stream.is_some() {
                c.due = 1;
                if shared {
                    c.template = last;
                }
                self.send(at, begin);
            }
        }
        self.drive(begin + 2 * PRIME, Phase::Connect)?;
        for (at, template) in own.into_iter().enumerate() {
            if self.connections[at].in_flight() > 0 && !self.meter.is_stopped() {
                self.fail(at, || "the first reply did not end in time".into());
            }
            let c = &mut self.connections[at];
            c.template = template;
            (c.due, c.started, c.answered) = (0, 0, 0);
            let served = usize::from(c.stream.is_some());
            self.groups[c.group].outcome.connections += served;
        }
        self.outstanding = 0;
        self.stage = Stage::Running;
        Ok(())
    }

    /// Runs until `end`; false if it ended early, by `stop` or because nothing is left to do.
    fn drive(&mut self, end: u64, phase: Phase) -> io::Result<bool> {
        let begin = self.meter.now();
        loop {
            let now = self.meter.now();
            if now >= end {
                return Ok(true);
            }
            let done = self.stage != Stage::Running && self.outstanding == 0;
            if self.meter.is_stopped() || self.alive == 0 || done {
                return Ok(false);
            }
            if now >= self.next_check {
                self.next_check = now + CHECK;
                self.check(now, begin, end, phase);
            }
            if now >= self.next_due {
                self.fire(now);
            }
            let free = self.next_due.saturating_sub(now).saturating_sub(SPIN);
            let nap = NAP.min(end - now).min(free);
            let n = self.epoll.wait(Duration::from_nanos(nap))?;
            for i in 0..n {
                let ready = self.epoll.ready(i);
                let now = self.handle(ready);
                if now >= self.next_due {
                    self.fire(now);
                }
            }
        }
    }

    /// Gives up silent connections and reports progress.
    fn check(&mut self, now: u64, begin: u64, end: u64, phase: Phase) {
        let mut patience = self.plan.patience;
        match self.stage {
            Stage::Priming => patience = patience.min(Duration::from_nanos(PRIME)),
            Stage::Running => {}
            Stage::Draining => return,
        }
        for at in 0..self.connections.len() {
            let c = &self.connections[at];
            if c.in_flight() > 0 && now.saturating_sub(c.since) > nanos(patience) {
                self.fail(at, || format!("no reply for {} s", patience.as_secs_f64()));
            }
        }
        if let Some(progress) = &self.plan.progress {
            progress(&Progress {
                phase,
                elapsed: Duration::from_nanos(now - begin),
                length: Duration::from_nanos(end - begin),
                connections: self.alive,
                requests: self.groups.iter().map(|g| g.outcome.requests).sum(),
            });
        }
    }

    /// Sends what the schedules say is due, and finds out what is due next.
    fn fire(&mut self, mut now: u64) {
        self.next_due = u64::MAX;
        for i in 0..self.groups.len() {
            let mut burst = 0;
            let Group { depth, first, .. } = self.groups[i];
            while let Some(schedule) = &mut self.groups[i].schedule {
                let due = schedule.next_due();
                if due > now || burst == BURST {
                    self.next_due = self.next_due.min(due);
                    break;
                }
                let at = first + schedule.next_connection();
                schedule.next += 1;
                burst += 1;
                let c = &mut self.connections[at];
                if c.stream.is_none() {
                    continue;
                }
                c.due += 1;
                let outcome = &mut self.groups[i].outcome;
                if c.is_free(depth) {
                    outcome.send_lag.saturating_record((now - due).max(1));
                    self.send(at, now);
                    now = self.meter.now();
                } else {
                    outcome.delayed += 1;
                }
            }
        }
    }

    /// In a closed loop, makes as many requests due as may be in flight.
    fn refill(&mut self, at: usize, now: u64) {
        let c = &mut self.connections[at];
        let group = &self.groups[c.group];
        if group.schedule.is_none() && c.stream.is_some() && self.stage == Stage::Running {
            c.due = c.answered + group.depth;
            for _ in c.started..c.due {
                c.sent_at.push_back(now);
            }
        }
    }

    /// Starts the requests that are due and have room, and writes what is owed.
    fn send(&mut self, at: usize, now: u64) {
        let c = &mut self.connections[at];
        let template = &self.templates[c.template];
        if self.stage != Stage::Draining {
            self.outstanding += c.start(template, self.groups[c.group].depth, now);
        }
        if let Err(error) = c.flush(template) {
            self.lost(at, &format!("connection lost while sending: {error}"));
        }
    }

    /// Reads all that has arrived on a connection, then sends; returns a recent time.
    fn handle(&mut self, ready: Ready) -> u64 {
        let at = ready.token as usize;
        let mut now = 0;
        let ended = ready.flags & ENDED != 0;
        if ended || ready.flags & os::READABLE != 0 {
            // Until the end of what there is: the edge will not be reported again.
            while let Some(mut stream) = self.connections[at].stream.as_ref() {
                match stream.read(&mut self.scratch) {
                    Ok(0) => self.lost(at, "the server closed the connection"),
                    Ok(n) => {
                        now = self.meter.now();
                        self.receive(at, n, now);
                        if n < self.scratch.len() && !ended {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => self.lost(at, &format!("connection lost: {error}")),
                }
            }
        }
        if now == 0 {
            now = self.meter.now();
        }
        self.refill(at, now);
        self.send(at, now);
        now
    }

    /// Takes the `n` bytes in the scratch buffer as the next ones of a connection.
    fn receive(&mut self, at: usize, n: usize, now: u64) {
        let c = &mut self.connections[at];
        let data = &self.scratch[..n];
        let found = match self.plan.work {
            Work::Matrix { .. } => reply::matrix(&self.templates[c.template], &mut c.cursor, data),
            Work::Http { .. } => reply::http(&mut self.memo, &mut c.cursor, data),
        };
        let Found { complete, bad } = match found {
            Ok(found) if found.complete <= c.in_flight() => found,
            Ok(_) => return self.fail(at, || "wrong reply: more replies than requests".into()),
            Err(why) => return self.fail(at, || why),
        };
        c.since = now;
        let Group {
            schedule, outcome, ..
        } = &mut self.groups[c.group];
        self.outstanding -= complete;
        if self.stage != Stage::Running {
            c.answered += complete;
            return;
        }
        outcome.bytes += n as u64;
        outcome.requests += complete - bad;
        for i in 0..complete {
            let sent = match schedule {
                Some(schedule) => schedule.intended(c.index, c.answered),
                None => c.sent_at.pop_front().unwrap_or(now),
            };
            c.answered += 1;
            // Which of several replies in one read were bad matters little here.
            if i >= bad {
                let latency = now.saturating_sub(sent).max(1);
                outcome.latency.saturating_record(latency);
            }
        }
        for _ in 0..bad {
            outcome.error(|| format!("status {}: ask for a path that exists", self.memo.status()));
        }
    }

    /// The server has closed a connection.
    fn lost(&mut self, at: usize, how: &str) {
        let hint = match self.connections[at].answered {
            0 => {
                " before its first reply: the server may have no room for so many (of `upshift serve`: --max-connections, --max-per-peer)"
            }
            _ => "",
        };
        self.fail(at, || format!("{how}{hint}"));
    }

    /// Closes a connection for good and counts why, once.
    fn fail(&mut self, at: usize, why: impl FnOnce() -> String) {
        let c = &mut self.connections[at];
        if c.stream.take().is_none() {
            return;
        }
        self.alive -= 1;
        self.outstanding -= c.in_flight();
        (c.due, c.started) = (c.answered, c.answered);
        if self.stage != Stage::Draining {
            let target = self.plan.groups[c.group].target;
            self.groups[c.group]
                .outcome
                .error(|| format!("{target}: {}", why()));
        }
    }

    fn count_unanswered(&mut self, now: u64) {
        for c in self.connections.iter().filter(|c| c.stream.is_some()) {
            let Group {
                schedule, outcome, ..
            } = &mut self.groups[c.group];
            let (due, oldest) = match schedule {
                Some(schedule) => (
                    schedule.due_until(c.index, now),
                    schedule.intended(c.index, c.answered),
                ),
                None => (c.started, c.sent_at.front().copied().unwrap_or(now)),
            };
            if due > c.answered {
                outcome.unanswered += due - c.answered;
                let age = Duration::from_nanos(now.saturating_sub(oldest));
                outcome.oldest_unanswered = outcome.oldest_unanswered.max(age);
            }
        }
    }
}

/// The most requests in flight on a connection.
fn depth(plan: &Plan, pace: Pace) -> u64 {
    match (&plan.work, pace) {
        (Work::Http { pipeline, .. }, _) => *pipeline as u64,
        (Work::Matrix { .. }, Pace::Closed) => 1,
        (Work::Matrix { .. }, _) => OPEN_DEPTH as u64,
    }
}

/// The requests in use, and whether there is one per group (HTTP names the host) or they are shared by all.
fn templates(plan: &Plan) -> (Vec<Template>, bool) {
    match &plan.work {
        Work::Http { pipeline, .. } => {
            let of = |group: &super::Group| {
                Template::new(&plan.work, 0, &group.target.to_string(), *pipeline)
            };
            (plan.groups.iter().map(of).collect(), true)
        }
        Work::Matrix { n } => {
            let variants = if *n <= 64 { VARIANTS } else { 1 };
            let depths = plan.groups.iter().map(|g| depth(plan, plan.pace_of(g)));
            let deepest = depths.max().unwrap_or(1) as usize;
            let of = |variant| Template::new(&plan.work, variant, "", deepest);
            ((0..variants as u64).map(of).collect(), false)
        }
    }
}

/// A request of the same work that costs the server little: matrices are of order 64 at most.
fn priming(plan: &Plan) -> Template {
    let work = match &plan.work {
        Work::Matrix { n } => Work::Matrix { n: (*n).min(64) },
        http => http.clone(),
    };
    Template::new(&work, 0, "", 1)
}
