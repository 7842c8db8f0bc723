//! The command line of `upshift sched`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::values;

/// Name of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Round-robin, one interval each
    Rr,
    /// A repeating timetable from a file
    Table,
    /// Shares of the CPU: stride scheduling
    Weighted,
    /// Earliest deadline first, with a budget in each period
    Edf,
    /// The most urgent level; equal levels round-robin
    Priority,
    /// A single process until it blocks
    Solo,
}

/// Flags of `upshift sched`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Policies, and the meaning of ARG:
  rr          in turn, one interval each
  table FILE  a repeating timetable: lines `TASK TIME`, e.g. `4711 5ms`; TASK is a pid, a label
              or several with commas (one for each CPU), `-` is no process; # begins a comment.
              ARG: a label
  weighted    stride scheduling; sleeping earns no credit. ARG: shares [1]
  edf         earliest deadline first, with a budget per period. ARG: PERIOD/BUDGET, e.g. 20ms/5ms
  priority    strict levels, 0 is the most urgent; equals in turn. ARG: level
  solo        one until it blocks

Examples:
  upshift sched rr --cpu 1 --interval 5ms --pid 4711 --pid 4712
  upshift sched weighted --cpu 1 --pid 4711=3 --pid 4712=1 --json
  upshift sched priority --cpu 0 --pid 4711=0 --arg 1 -- make -j4
  upshift sched table plan.txt --cpu 1 --run '@a ./control' --run '@b ./vision' --timeline out.svg
  upshift sched edf --cpu 0 --pid 4711=20ms/5ms --duration 10s
  upshift sched priority --cpu 0,1 --unit redis.service=0 --comm 'cc*=1'
  upshift sched --config /etc/upshift/sched.toml

--cgroup, --unit, --user and --comm select all matching processes at the start, each as a separate
task, except this process and its ancestors. Those that cannot be scheduled are skipped with a note.
Processes choose their own names: --comm matches those of all users.

All threads of a process are scheduled, including later ones. Scheduling ends when all processes
have ended, after --duration, or on Ctrl-C. Policy, priority and CPUs of all threads are then
restored, even if this command is killed by SIGKILL. Commands started by it end with it. It needs
CAP_SYS_NICE (root) or RLIMIT_RTPRIO; `upshift calibrate` says what is missing. Exit code: that of
the command after `--` if it has ended by itself, else 0; 130 after Ctrl-C, 143 after SIGTERM; 1 on
failure."
)]
pub(crate) struct SchedArgs {
    /// rr, table, weighted, edf, priority or solo
    #[arg(value_enum, hide_possible_values = true)]
    pub(super) policy: PolicyName,
    /// The timetable, for `table`
    #[arg(value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// A TOML file with these options by their long names, and `policy` and `file`; the command
    /// line overrides options that may be given only once
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// CPUs shared by the processes, e.g. `0,1`; each runs one process at a time
    #[arg(long, value_name = "CPUS", required = true, value_parser = values::cpus)]
    cpu: Vec<values::Cpus>,
    /// A process, with its argument for the policy; may be repeated
    #[arg(long, value_name = "PID[=ARG]")]
    pub(super) pid: Vec<String>,
    /// The processes of a cgroup, `*` matches any characters; may be repeated
    #[arg(long, value_name = "PATH[=ARG]")]
    pub(super) cgroup: Vec<String>,
    /// The processes of a systemd unit, `*` matches any characters; may be repeated
    #[arg(long, value_name = "UNIT[=ARG]")]
    pub(super) unit: Vec<String>,
    /// The processes of a user; may be repeated
    #[arg(long, value_name = "USER[=ARG]")]
    pub(super) user: Vec<String>,
    /// The processes with this program name, `*` matches any characters; may be repeated
    #[arg(long, value_name = "NAME[=ARG]")]
    pub(super) comm: Vec<String>,
    /// A command to start, with shell quoting, after an optional `@ARG`; may be repeated
    #[arg(long, value_name = "[@ARG] COMMAND")]
    pub(super) run: Vec<String>,
    /// The policy's argument for the command after `--`
    #[arg(long, value_name = "ARG", requires = "command")]
    pub(super) arg: Option<String>,
    /// Length of a slice
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = upshift_units::positive_duration)]
    pub(super) interval: Duration,
    /// Also schedule the children of the processes
    #[arg(long)]
    pub(super) children: bool,
    /// CPU of the scheduler itself [default: the first of --cpu]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    pub(super) sched_cpu: Option<usize>,
    /// Share of the time in which ordinary threads may compete, in pieces of about 3 ms; a process
    /// that wakes during a piece may wait for its end. With 0 the kernel may instead stop
    /// everything for 50 ms of each second
    #[arg(long, value_name = "SHARE", default_value = "12%", value_parser = open_share)]
    pub(super) open: f64,
    /// Duration [default: until all processes have ended]
    #[arg(long, visible_alias = "for", value_name = "TIME", value_parser = upshift_units::positive_duration)]
    pub(super) duration: Option<Duration>,
    /// Use this as the shortest slice instead of measuring timers for 0.2 s
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration)]
    pub(super) min_slice: Option<Duration>,
    /// Print JSON at the end instead of tables
    #[arg(long)]
    pub(super) json: bool,
    /// Write every switch as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Draw the times at which each process ran
    #[arg(long, value_name = "FILE.svg")]
    pub(super) timeline: Option<PathBuf>,
    /// A command to start
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl SchedArgs {
    /// Returns the CPUs, each once.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<_> = self.cpu.iter().flat_map(|list| list.0.clone()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Returns whether there is a `--config` that was not read before the command line was parsed,
    /// because it is abbreviated or not the first one.
    pub(super) fn has_unread_config(&self) -> bool {
        self.config.is_some()
    }

    pub(super) fn wants_trace(&self) -> bool {
        self.trace.is_some() || self.timeline.is_some()
    }
}

fn open_share(text: &str) -> Result<f64, String> {
    match upshift_units::share(text)? {
        share if share <= 0.9 => Ok(share),
        _ => Err(format!(
            "`{text}` leaves nothing to schedule; write 0 to 90%"
        )),
    }
}
