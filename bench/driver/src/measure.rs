//! Measures one run: a fresh server on CPU 0, the client on CPU 1, and the CPU time of both.

use std::io;
use std::time::Duration;

use upshift_load::cpu::{Reading, cpu_time_of_ended_children};
use upshift_load::{Awake, CpuUse, Group, GroupReport, Outcome, Plan, Report, Work, run};

use crate::machine::{LoadMonitor, Lost, Usage};
use crate::options::Options;
use crate::peers::Program;
use crate::results::Run;
use crate::server::Server;

/// A way to make a run, and to turn its results into rows of a table.
pub(crate) trait Drive {
    /// Starts the server, drives it, and ends it. `round` counts from 0, and seeds random loads.
    fn measure(&self, program: &Program, round: usize) -> Result<Measured, String>;

    /// Returns the table rows of `measured`, for a server of this name.
    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        vec![(name.to_owned(), measured.all)]
    }
}

/// Load of a run that requests matrices or pages.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) work: Work,
    pub(crate) connections: usize,
    /// Requests per second to each address; if `None`, the next request follows the reply.
    pub(crate) rate: Option<f64>,
    /// Addresses on which the server listens, with one group of connections each.
    pub(crate) listen: Vec<String>,
    /// Number of loaded addresses, from the first.
    pub(crate) loaded: usize,
    /// Set if the server runs on CPU 0 and the client on CPU 1; otherwise both run on any CPU.
    pub(crate) is_pinned: bool,
    pub(crate) time: Duration,
}

impl Load {
    /// Creates a closed loop of connections to one address, pinned.
    pub(crate) fn closed(work: Work, connections: usize, options: &Options) -> Load {
        Load {
            work,
            connections,
            rate: None,
            listen: vec!["127.0.0.1:0".into()],
            loaded: 1,
            is_pinned: true,
            time: options.time,
        }
    }
}

pub(crate) struct Measured {
    /// Results of all groups together.
    pub(crate) all: Run,
    /// Results by address; the CPU times are those of the whole run.
    pub(crate) groups: Vec<Run>,
}

impl Drive for Load {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let server = Server::start(program, &self.listen, self.is_pinned.then_some(0))?;
        let groups = server.addresses.iter().take(self.loaded);
        let groups = groups.map(|&a| Group::new(a, self.connections, a.to_string()));
        let mut plan = Plan::new(groups.collect(), self.work.clone(), self.time);
        if let Some(per_second) = self.rate {
            plan.pace = upshift_load::Pace::OpenRate { per_second };
        }
        plan.warmup = Duration::from_millis(250).min(self.time / 2);
        // The server may starve a level, so the client waits long enough that this is not an error.
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = self.is_pinned.then_some(1);
        plan.server_pids = server.pids();
        observe(&server, self.is_pinned, None, || run(&plan))
    }
}

/// Drives a server and sums up the outcome; otherwise like [`watch`].
pub(crate) fn observe(
    server: &Server,
    is_pinned: bool,
    awake: Option<&Awake>,
    drive: impl FnOnce() -> io::Result<Outcome>,
) -> Result<Measured, String> {
    let drive = || drive().map_err(|e| e.to_string());
    let (outcome, lost) = watch(server, is_pinned, awake, drive)?;
    Ok(summarize(&outcome, lost))
}

/// Drives a server and measures the shares of the CPUs that other programs and the hypervisor took.
/// Processes that `drive` starts and waits for count as clients.
///
/// `awake` is a thread that spins on CPU 0, if there is one; its time counts neither for the client
/// nor for other programs.
pub(crate) fn watch<T>(
    server: &Server,
    is_pinned: bool,
    awake: Option<&Awake>,
    drive: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Lost), String> {
    let pids = server.pids();
    let server_time = || {
        let times = pids
            .iter()
            .map(|&pid| Ok(Reading::for_process(pid)?.total()));
        times
            .sum::<io::Result<Duration>>()
            .map_err(|e| e.to_string())
    };
    let client_time = || {
        let own_time = Reading::for_process(std::process::id()).map_err(|e| e.to_string())?;
        Ok::<Duration, String>(own_time.total() + cpu_time_of_ended_children())
    };
    let cpu_times = || Ok::<_, String>([server_time()?, client_time()?]);
    let spinner_time = || awake.map(Awake::used).unwrap_or_default();
    let monitor = LoadMonitor::start();
    let before = cpu_times()?;
    let spun_before = spinner_time();
    let outcome = drive()?;
    let after = cpu_times()?;
    let spinner_time = spinner_time().saturating_sub(spun_before);
    let Usage { time, busy, steal } = monitor.stop();
    let [server, client] = [0, 1].map(|i| after[i].saturating_sub(before[i]));
    // The spinner is a thread of this process, on the server's CPU.
    let own_shares = [server + spinner_time, client.saturating_sub(spinner_time)];
    let own_shares = own_shares.map(|used| used.as_secs_f64() / time.as_secs_f64());
    let foreign = if is_pinned {
        (busy[0] - own_shares[0]).max(busy[1] - own_shares[1])
    } else {
        (busy[0] + busy[1] - own_shares[0] - own_shares[1]) / 2.0
    };
    let foreign = foreign.max(0.0);
    Ok((outcome, Lost { foreign, steal }))
}

/// Converts an outcome into runs: one for all connections, and one for each group of them.
pub(crate) fn summarize(outcome: &Outcome, lost: Lost) -> Measured {
    let report = Report::new(outcome);
    let (user, sys) = report.server_cpu_us.unwrap_or_default();
    let busy = |cpu: CpuUse| cpu.total().as_secs_f64() / report.seconds;
    let run = |group: &GroupReport| Run {
        per_second: group.per_second,
        round: 0,
        mean: group.mean,
        jitter: group.jitter,
        p50: group.p50,
        p95: group.p95,
        p99: group.p99,
        p999: group.p999,
        p99_of_pieces: 0.0,
        user,
        sys,
        errors: group.errors,
        first_error: group.first_error.clone(),
        unanswered: (group.unanswered, group.oldest_unanswered),
        replies: group.requests,
        send_lag: group.send_lag_p99,
        server_busy: busy(outcome.server_cpu.unwrap_or_default()),
        client_busy: busy(outcome.client_cpu),
        foreign: lost.foreign,
        steal: lost.steal,
        resident: 0.0,
        kernel: 0.0,
    };
    Measured {
        all: run(&report.total),
        groups: report.groups.iter().map(run).collect(),
    }
}
