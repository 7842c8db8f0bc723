//! The client's loop: sends due requests, waits, reads replies, and sends the next requests.
//!
//! All times are ns since the start of the run. Every socket is registered once, edge-triggered. A
//! read that does not fill the buffer has emptied the socket. A write is tried at once, and only
//! the bytes that the socket did not take wait for an event. An iteration costs one `epoll_wait`, a
//! request one `write` and one `read`. After connecting, the loop allocates only for HTTP heads cut
//! by the end of a read, for error messages, and 24 bytes for each request that has no reply.

use super::arrivals::{Arrivals, Request};
use super::connect;
use super::connection::Connection;
use super::meter::{BUSY_POLL_TIME, MAX_BURST, MAX_SLEEP, Meter, PRIMING_TIMEOUT, nanos};
use super::outcome::{GroupOutcome, Outcome};
use super::plan::{Plan, Work};
use super::reply::{self, HeadMemo, ReplyCounts, Template};
use super::{OPEN_DEPTH, Pace};
use crate::os::{self, ENDED, Epoll, Ready};
use std::io::{self, Read};
use std::time::Duration;

/// Period in which all connections are checked for silence, in ns.
const SILENCE_CHECK_PERIOD: u64 = 100_000_000;
/// Number of connections checked at a time, so that tens of thousands do not delay a request.
const SILENCE_CHECK_BATCH: usize = 512;
/// Longest wait for the last replies, in ns.
const MAX_DRAIN: u64 = 250_000_000;
/// Number of different matrices, if their products cost little.
const VARIANTS: usize = 8;

/// The phase of a run: the requests that are made, and whether their replies count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first request on each connection; only errors count.
    Priming,
    /// The load; only errors count.
    Warming,
    /// The load; replies count.
    Measuring,
    /// The time after the load; replies still count.
    Draining,
    /// The wait for the last replies; no reply counts.
    Ending,
}

struct Group {
    arrivals: Arrivals,
    /// Maximum number of requests in flight on a connection.
    depth: usize,
    /// Index of the group's first connection.
    first: usize,
}

pub(crate) struct Engine<'p> {
    plan: &'p Plan,
    meter: Meter,
    epoll: Epoll,
    groups: Vec<Group>,
    /// Outcomes by class of each group, group by group.
    outcomes: Vec<GroupOutcome>,
    /// Number of classes; 1 for work without classes.
    classes: usize,
    connections: Vec<Connection>,
    /// Templates; for matrices the last one is for the first requests. Empty for spin requests.
    templates: Vec<Template>,
    memo: HeadMemo,
    /// Buffer into which replies are read.
    scratch: Box<[u8]>,
    /// Number of open connections.
    alive: usize,
    /// Number of requests without a reply, except for the request of the hog, which occupies the
    /// server during the run.
    waiting: usize,
    /// Earliest send time of all groups; `u64::MAX` in a closed loop.
    next_due: u64,
    /// Time before a send time that the client spends polling instead of sleeping, in ns; 0 if the
    /// client is elevated, since polling would starve the programs on its CPU.
    busy_poll_time: u64,
    /// End of the load; no request is due from this time on.
    until: u64,
    next_check: u64,
    /// First connection of the next check for silence.
    unchecked: usize,
    stage: Stage,
}

impl<'p> Engine<'p> {
    pub(crate) fn new(plan: &'p Plan) -> io::Result<Engine<'p>> {
        // Fail before connecting if the server cannot be measured.
        let meter = Meter::new(plan.stop.as_ref(), &plan.server_pids)?;
        let (mut templates, is_per_group) = templates(plan);
        let variants = templates.len().max(1);
        templates.extend(priming_template(plan));
        let mut outcomes = Vec::new();
        for group in &plan.groups {
            let labels: Vec<&String> = match &plan.classes[..] {
                [] => vec![&group.label],
                classes => classes.iter().map(|class| &class.label).collect(),
            };
            outcomes.extend(labels.into_iter().map(|l| GroupOutcome::new(l.clone())));
        }
        let mut targets: Vec<usize> = Vec::new();
        for (i, group) in plan.groups.iter().enumerate() {
            targets.extend(std::iter::repeat_n(i, group.connections));
        }
        targets.extend(plan.hog.map(|_| 0));
        let classes = plan.classes.len().max(1);
        let streams = connect::establish(plan, &targets, |group, why| {
            outcomes[group * classes].record_error(|| why);
        })?;
        let epoll = Epoll::new(64)?;
        let mut connections: Vec<Connection> = Vec::with_capacity(streams.len());
        let (mut groups, mut first) = (Vec::new(), 0);
        for group in &plan.groups {
            groups.push(Group {
                arrivals: Arrivals::new(Pace::Closed, group.connections, 0, 0.0, 0),
                depth: depth(plan, plan.pace_of(group)),
                first,
            });
            first += group.connections;
        }
        for (connection, (stream, group)) in streams.into_iter().zip(targets).enumerate() {
            if let Some(stream) = &stream {
                epoll.add(stream, connection as u64, os::EDGE_TRIGGERED)?;
            }
            let index = connection - groups[group].first;
            let template = if is_per_group {
                group
            } else {
                index % variants
            };
            connections.push(Connection::new(stream, group, template));
        }
        Ok(Engine {
            plan,
            meter,
            epoll,
            groups,
            outcomes,
            classes,
            alive: connections.iter().filter(|c| c.stream.is_some()).count(),
            connections,
            templates,
            memo: HeadMemo::default(),
            scratch: vec![0; 64 * 1024].into_boxed_slice(),
            waiting: 0,
            next_due: u64::MAX,
            busy_poll_time: if plan.fifo.is_some() {
                0
            } else {
                BUSY_POLL_TIME
            },
            until: u64::MAX,
            next_check: 0,
            unchecked: 0,
            stage: Stage::Priming,
        })
    }

    pub(crate) fn run(mut self) -> io::Result<Outcome> {
        self.prime()?;
        self.send_hog_request();
        let begin = self.meter.now();
        let from = begin + nanos(self.plan.warmup);
        self.until = from + nanos(self.plan.duration);
        let count = self.groups.len() as f64;
        for (i, group) in self.plan.groups.iter().enumerate() {
            self.groups[i].arrivals = Arrivals::new(
                self.plan.pace_of(group),
                group.connections,
                begin,
                i as f64 / count,
                self.plan.seed.wrapping_add(i as u64),
            );
        }
        self.stage = Stage::Warming;
        self.send_due(begin);
        for connection in 0..self.connections.len() {
            self.refill(connection, begin);
            self.send(connection, begin);
        }
        let mut is_running = self.drive(from)?;

        self.stage = Stage::Measuring;
        let before = self.meter.read_cpu();
        let from = self.meter.now();
        is_running = is_running && self.drive(self.until)?;
        while is_running && self.next_due < self.until {
            // Due requests that the client has not sent in time count, too.
            self.send_due(self.meter.now());
        }
        let to = self.meter.now();
        let after = self.meter.read_cpu();
        let elapsed = Duration::from_nanos(to - from);
        self.stage = Stage::Draining;
        self.next_due = u64::MAX;
        if is_running {
            self.drive(to + nanos(self.plan.drain))?;
        }
        self.count_unanswered(elapsed);
        self.stage = Stage::Ending;
        if is_running {
            for connection in 0..self.connections.len() {
                self.waiting -= self.connections[connection].outstanding();
                self.connections[connection].drop_unstarted();
                self.waiting += self.connections[connection].outstanding();
            }
            self.drive(self.meter.now() + MAX_DRAIN)?;
        }
        let (server_cpu, client_cpu) = before.used_until(&after);
        let served = self.outcomes.iter().step_by(self.classes);
        Ok(Outcome {
            connections: served.map(|outcome| outcome.connections).sum(),
            elapsed,
            server_cpu,
            client_cpu,
            stopped: self.meter.is_stopped(),
            groups: self.outcomes,
        })
    }

    /// Waits for one answer on every connection, so that load meets a server that serves all of
    /// them.
    ///
    /// The kernel completes connections that the server has not accepted, and a server under load
    /// may not accept them for seconds, so without this wait fewer connections than planned would
    /// be measured.
    fn prime(&mut self) -> io::Result<()> {
        let begin = self.meter.now();
        let is_matrix = matches!(self.plan.work, Work::Matrix { .. });
        let level = self.plan.classes.iter().map(|c| c.level).min().unwrap_or(0);
        let load_templates: Vec<usize> = self.connections.iter().map(|c| c.template).collect();
        for connection in 0..self.connections.len() {
            if self.connections[connection].stream.is_some() {
                if is_matrix {
                    self.connections[connection].template = self.templates.len() - 1;
                }
                self.push(connection, Request::uncounted(0, level));
                self.send(connection, begin);
            }
        }
        self.drive(begin + 2 * PRIMING_TIMEOUT)?;
        for (connection, template) in load_templates.into_iter().enumerate() {
            if self.connections[connection].outstanding() > 0 && !self.meter.is_stopped() {
                self.fail(connection, || "the first reply did not end in time".into());
            }
            self.connections[connection].template = template;
        }
        for (i, group) in self.plan.groups.iter().enumerate() {
            let members = self.connections[self.groups[i].first..].iter();
            let served = members
                .take(group.connections)
                .filter(|c| c.stream.is_some());
            let served = served.count();
            for outcome in &mut self.outcomes[i * self.classes..][..self.classes] {
                outcome.connections = served;
            }
        }
        Ok(())
    }

    /// Sends the hog's request (one long request) on its own connection, the last one. The loop
    /// does not wait for its reply.
    fn send_hog_request(&mut self) {
        if let Some(hog) = self.plan.hog {
            let (connection, now) = (self.connections.len() - 1, self.meter.now());
            self.push(
                connection,
                Request::uncounted(nanos(hog.service), hog.level),
            );
            self.send(connection, now);
            self.waiting -= self.connections[connection].outstanding();
        }
    }

    fn is_hog(&self, connection: usize) -> bool {
        self.plan.hog.is_some()
            && self.stage != Stage::Priming
            && connection + 1 == self.connections.len()
    }

    /// Runs until `end`. Returns false if the run ended early, by `stop` or for lack of work.
    fn drive(&mut self, end: u64) -> io::Result<bool> {
        loop {
            let now = self.meter.now();
            if now >= end {
                return Ok(true);
            }
            let is_load = matches!(self.stage, Stage::Warming | Stage::Measuring);
            if self.meter.is_stopped() || self.alive == 0 || (!is_load && self.waiting == 0) {
                return Ok(false);
            }
            if now >= self.next_check {
                let checks = self.connections.len().div_ceil(SILENCE_CHECK_BATCH).max(1);
                self.next_check = now + SILENCE_CHECK_PERIOD / checks as u64;
                self.check_silence(now);
            }
            if now >= self.next_due {
                self.send_due(now);
            }
            let time_to_due = self
                .next_due
                .saturating_sub(now)
                .saturating_sub(self.busy_poll_time);
            let sleep_time = MAX_SLEEP.min(end - now).min(time_to_due);
            let n = self.epoll.wait(Duration::from_nanos(sleep_time))?;
            for i in 0..n {
                let ready = self.epoll.ready(i);
                let now = self.handle(ready);
                if now >= self.next_due {
                    self.send_due(now);
                }
            }
        }
    }

    /// Fails the silent connections among the next [`SILENCE_CHECK_BATCH`].
    fn check_silence(&mut self, now: u64) {
        let mut patience = self.plan.patience;
        match self.stage {
            Stage::Priming => patience = patience.min(Duration::from_nanos(PRIMING_TIMEOUT)),
            Stage::Warming | Stage::Measuring if !matches!(self.plan.work, Work::Spin) => {}
            _ => return,
        }
        let from = self.unchecked;
        let to = (from + SILENCE_CHECK_BATCH).min(self.connections.len());
        self.unchecked = to % self.connections.len().max(1);
        for connection in from..to {
            let c = &self.connections[connection];
            let is_silent = now.saturating_sub(c.since) > nanos(patience);
            if c.in_flight() > 0 && is_silent {
                self.fail(connection, || {
                    format!("no reply for {} s", patience.as_secs_f64())
                });
            }
        }
    }

    /// Sends due requests, at most a burst for each group, and finds the next send time.
    fn send_due(&mut self, mut now: u64) {
        self.next_due = u64::MAX;
        for i in 0..self.groups.len() {
            for sent in 0.. {
                let Group {
                    arrivals,
                    depth,
                    first,
                } = &mut self.groups[i];
                let due = arrivals.next_due();
                if due >= self.until || due > now || sent == MAX_BURST {
                    self.next_due = self.next_due.min(due);
                    break;
                }
                let (index, request) = arrivals.take(&self.plan.classes);
                let connection = *first + index;
                let c = &mut self.connections[connection];
                if c.stream.is_none() {
                    continue;
                }
                let is_free = c.is_free(*depth);
                if self.stage == Stage::Measuring {
                    let outcome = self.outcome_of(connection, request.class);
                    if is_free {
                        outcome.send_lag.saturating_record((now - due).max(1));
                    } else {
                        outcome.delayed += 1;
                    }
                }
                self.push(connection, request);
                if is_free {
                    self.send(connection, now);
                    now = now.max(self.meter.now());
                }
            }
        }
    }

    fn outcome_of(&mut self, connection: usize, class: u16) -> &mut GroupOutcome {
        &mut self.outcomes[self.connections[connection].group * self.classes + usize::from(class)]
    }

    fn push(&mut self, connection: usize, request: Request) {
        self.waiting += 1;
        self.connections[connection].push(request);
    }

    /// Adds the requests of a closed loop, as many as may be in flight.
    fn refill(&mut self, connection: usize, now: u64) {
        let is_load = matches!(self.stage, Stage::Warming | Stage::Measuring);
        let c = &self.connections[connection];
        let group = &mut self.groups[c.group];
        if !is_load || c.stream.is_none() || group.arrivals.is_open() {
            return;
        }
        for _ in c.outstanding()..group.depth {
            let request = group.arrivals.draw(now, &self.plan.classes);
            self.waiting += 1;
            self.connections[connection].push(request);
        }
    }

    /// Starts waiting requests for which there is room, and writes the unsent bytes.
    fn send(&mut self, connection: usize, now: u64) {
        let c = &mut self.connections[connection];
        let template = self.templates.get(c.template);
        c.start(template, self.groups[c.group].depth, now);
        if let Err(error) = c.flush(template) {
            self.on_closed(
                connection,
                &format!("connection lost while sending: {error}"),
            );
        }
    }

    /// Reads all that has arrived on a connection, then sends; returns a recent time.
    fn handle(&mut self, ready: Ready) -> u64 {
        let connection = ready.token as usize;
        let mut now = 0;
        let ended = ready.flags & ENDED != 0;
        if ended || ready.flags & os::READABLE != 0 {
            // Reads until the socket is empty, because the edge will not be reported again.
            while let Some(mut stream) = self.connections[connection].stream.as_ref() {
                match stream.read(&mut self.scratch) {
                    Ok(0) => self.on_closed(connection, "the server closed the connection"),
                    Ok(n) => {
                        now = self.meter.now();
                        if let Err(why) = self.receive(connection, n, now) {
                            self.fail(connection, || why);
                        }
                        if n < self.scratch.len() && !ended {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => self.on_closed(connection, &format!("connection lost: {error}")),
                }
            }
        }
        if now == 0 {
            now = self.meter.now();
        }
        if !self.is_hog(connection) {
            self.refill(connection, now);
        }
        self.send(connection, now);
        now
    }

    /// Processes the `n` bytes in the scratch buffer as the next bytes of a connection.
    fn receive(&mut self, connection: usize, n: usize, now: u64) -> Result<(), String> {
        let is_hog = self.is_hog(connection);
        let is_counted = matches!(self.stage, Stage::Measuring | Stage::Draining);
        let c = &mut self.connections[connection];
        let outcomes = &mut self.outcomes[c.group * self.classes..][..self.classes];
        if is_counted {
            // The first of several classes on a connection counts the bytes.
            outcomes[0].bytes += n as u64;
        }
        c.since = now;
        let mut data = &self.scratch[..n];
        let counts = match self.plan.work {
            Work::Matrix { .. } => reply::matrix(&self.templates[c.template], &mut c.cursor, data)?,
            Work::Http { .. } => reply::http(&mut self.memo, &mut c.cursor, data)?,
            // Spin replies are counted below, frame by frame.
            Work::Spin => ReplyCounts {
                complete: u64::MAX,
                bad: 0,
            },
        };
        for i in 0..counts.complete {
            let request = if matches!(self.plan.work, Work::Spin) {
                let reply = c.frames.next(&mut data);
                let Some(reply) = reply.map_err(|error| format!("wrong reply: {error}"))? else {
                    return Ok(());
                };
                c.take_by_tag(&reply).ok_or_else(|| {
                    let tag = reply.tag;
                    format!("wrong reply: no unanswered request has its tag ({tag:#x})")
                })?
            } else {
                c.take_oldest()
                    .ok_or("wrong reply: more replies than requests")?
            };
            c.has_replied = true;
            self.waiting -= usize::from(!is_hog);
            if !is_counted || request.class == Request::UNCOUNTED {
                continue;
            }
            let outcome = &mut outcomes[usize::from(request.class)];
            // It matters little which of several replies in one read were bad.
            if i >= counts.bad {
                outcome.requests += 1;
                let latency = now.saturating_sub(request.intended).max(1);
                outcome.latency.saturating_record(latency);
            } else {
                let status = self.memo.status();
                outcome.record_error(|| format!("status {status}: ask for a path that exists"));
            }
        }
        Ok(())
    }

    /// Handles a connection that the server has closed.
    fn on_closed(&mut self, connection: usize, how: &str) {
        let hint = if self.connections[connection].has_replied {
            ""
        } else {
            " before its first reply: the server may have no room for so many (flags of `upshift serve`: --connections, --connections-per-peer)"
        };
        self.fail(connection, || format!("{how}{hint}"));
    }

    /// Closes a connection for good and counts the reason, once.
    fn fail(&mut self, connection: usize, why: impl FnOnce() -> String) {
        let is_hog = self.is_hog(connection);
        let c = &mut self.connections[connection];
        if c.stream.take().is_none() {
            return;
        }
        self.alive -= 1;
        if !is_hog {
            self.waiting -= c.outstanding();
        }
        c.clear();
        if self.stage != Stage::Ending {
            let target = self.plan.groups[c.group].target;
            self.outcome_of(connection, 0)
                .record_error(|| format!("{target}: {}", why()));
        }
    }

    /// Counts the requests without a reply, and sets the measured time.
    fn count_unanswered(&mut self, elapsed: Duration) {
        let now = self.meter.now();
        for outcome in &mut self.outcomes {
            outcome.elapsed = elapsed;
        }
        for c in &self.connections {
            let counted = c.unanswered().filter(|r| r.class != Request::UNCOUNTED);
            for request in counted {
                let index = c.group * self.classes + usize::from(request.class);
                let outcome = &mut self.outcomes[index];
                outcome.unanswered += 1;
                let age = Duration::from_nanos(now.saturating_sub(request.intended));
                outcome.oldest_unanswered = outcome.oldest_unanswered.max(age);
            }
        }
    }
}

/// Returns the maximum number of requests in flight on a connection.
fn depth(plan: &Plan, pace: Pace) -> usize {
    match (&plan.work, pace) {
        (Work::Http { pipeline, .. }, _) => *pipeline,
        (Work::Matrix { .. } | Work::Spin, Pace::Closed) => 1,
        (Work::Matrix { .. }, _) => OPEN_DEPTH,
        (Work::Spin, _) => usize::MAX,
    }
}

/// Returns the templates, and whether there is one per group (HTTP names the host) or all groups
/// share them.
fn templates(plan: &Plan) -> (Vec<Template>, bool) {
    match &plan.work {
        Work::Http { pipeline, .. } => {
            let new_template = |group: &super::Group| {
                Template::new(&plan.work, 0, &group.target.to_string(), *pipeline)
            };
            (plan.groups.iter().map(new_template).collect(), true)
        }
        Work::Matrix { n } => {
            let variants = if *n <= 64 { VARIANTS } else { 1 };
            let depths = plan.groups.iter().map(|g| depth(plan, plan.pace_of(g)));
            let deepest = depths.max().unwrap_or(1);
            let new_template = |variant| Template::new(&plan.work, variant, "", deepest);
            ((0..variants as u64).map(new_template).collect(), false)
        }
        Work::Spin => (Vec::new(), false),
    }
}

/// Creates the template of the first request on each connection, with a matrix of order 64 at most,
/// which costs the server little. `None` for other work.
fn priming_template(plan: &Plan) -> Option<Template> {
    match plan.work {
        Work::Matrix { n } => Some(Template::new(&Work::Matrix { n: n.min(64) }, 0, "", 1)),
        _ => None,
    }
}
