//! The command line of `upshift sched`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::values;

/// Which policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Each in turn, for one interval
    Rr,
    /// A repeating timetable from a file
    Table,
    /// By shares: stride scheduling
    Weighted,
    /// Earliest deadline first, with a budget in each period
    Edf,
    /// The most urgent level; equals in turn
    Priority,
    /// One until it blocks
    Solo,
}

/// Flags of `upshift sched`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Policies, and what ARG means for each:
  rr          each in turn for one interval
  table FILE  a repeating timetable: lines `TASK TIME`, e.g. `4711 5ms`; TASK is a pid, a label
              or several with commas (one for each CPU), `-` is no process; # begins a comment.
              ARG: a label
  weighted    stride scheduling; sleepers save nothing up. ARG: shares [1]
  edf         earliest deadline first, a budget in each period. ARG: PERIOD/BUDGET, e.g. 20ms/5ms
  priority    strict levels, 0 the most urgent; equals take turns. ARG: level
  solo        one until it blocks

Examples:
  upshift sched rr --cpu 1 --interval 5ms --pid 4711 --pid 4712
  upshift sched weighted --cpu 1 --pid 4711=3 --pid 4712=1 --json
  upshift sched priority --cpu 0 --pid 4711=0 --arg 1 -- make -j4
  upshift sched table plan.txt --cpu 1 --run '@a ./control' --run '@b ./vision' --timeline out.svg
  upshift sched edf --cpu 0 --pid 4711=20ms/5ms --for 10s
  upshift sched priority --cpu 0,1 --unit redis.service=0 --comm 'cc*=1'
  upshift sched --config /etc/upshift/sched.toml

--cgroup, --unit, --user and --comm name all processes that fit when it starts, each a task of its
own, but not this one and its ancestors. Those that cannot be scheduled are left out, and a note
says why. Anybody may give a process a name: --comm takes those of all users.

All threads of a process are scheduled, also those born later. It ends when all processes have
ended, with --for, or by Ctrl-C; policy, priority and CPUs of all of them are then what they were,
also after a SIGKILL. Commands it has started are ended with it. It needs CAP_SYS_NICE (root) or
RLIMIT_RTPRIO; `upshift calibrate` says what is missing. Exit code: that of the command after `--`
if it has ended by itself, else 0; 130 after Ctrl-C, 143 after SIGTERM; 1 if this has failed."
)]
pub(crate) struct SchedArgs {
    /// rr, table, weighted, edf, priority or solo
    #[arg(value_enum, hide_possible_values = true)]
    pub(super) policy: PolicyName,
    /// The timetable, for `table`
    #[arg(value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// A TOML file with these options by their long names, and `policy` and `file`; of those that are given once, the command
    /// line's count
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// CPUs the processes share, e.g. `0,1`; one of them at a time runs on each
    #[arg(long, value_name = "CPUS", value_delimiter = ',', required = true, value_parser = values::cpu)]
    cpu: Vec<usize>,
    /// A process, with what the policy has to know of it; may be repeated
    #[arg(long, value_name = "PID[=ARG]")]
    pub(super) pid: Vec<String>,
    /// The processes whose cgroup is that, `*` for any characters; may be repeated
    #[arg(long, value_name = "PATH[=ARG]")]
    pub(super) cgroup: Vec<String>,
    /// The processes of a unit of systemd, `*` for any characters; may be repeated
    #[arg(long, value_name = "UNIT[=ARG]")]
    pub(super) unit: Vec<String>,
    /// The processes of a user; may be repeated
    #[arg(long, value_name = "USER[=ARG]")]
    pub(super) user: Vec<String>,
    /// The processes whose program has that name, `*` for any characters; may be repeated
    #[arg(long, value_name = "NAME[=ARG]")]
    pub(super) comm: Vec<String>,
    /// A command to start, quoted as for a shell, `@ARG` before it; may be repeated
    #[arg(long, value_name = "[@ARG] COMMAND")]
    pub(super) run: Vec<String>,
    /// What the policy has to know of the command after `--`
    #[arg(long, value_name = "ARG", requires = "command")]
    pub(super) arg: Option<String>,
    /// Length of a slice
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = values::duration)]
    pub(super) interval: Duration,
    /// Schedule the children of the processes with them
    #[arg(long)]
    pub(super) children: bool,
    /// CPU of the scheduler itself [default: the first of --cpu]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    pub(super) sched_cpu: Option<usize>,
    /// Part of the time in which ordinary threads may compete; without any the kernel may stop everything for 50 ms of
    /// each second instead
    #[arg(long, value_name = "SHARE", default_value = "12%", value_parser = open)]
    pub(super) open: f64,
    /// How long [default: until all have ended]
    #[arg(long = "for", value_name = "TIME", value_parser = values::duration)]
    pub(super) duration: Option<Duration>,
    /// Take this as the timers' floor instead of measuring it, which takes 0.2 s
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(super) floor: Option<Duration>,
    /// Print JSON at the end instead of tables
    #[arg(long)]
    pub(super) json: bool,
    /// Write every switch, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Draw which process ran when
    #[arg(long, value_name = "FILE.svg")]
    pub(super) timeline: Option<PathBuf>,
    /// A command to start
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl SchedArgs {
    /// The CPUs, each once.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus = self.cpu.clone();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Whether a file was named where it is not read: by an abbreviation, say.
    pub(super) fn has_unread_file(&self) -> bool {
        self.config.is_some()
    }

    pub(super) fn wants_trace(&self) -> bool {
        self.trace.is_some() || self.timeline.is_some()
    }
}

fn open(text: &str) -> Result<f64, String> {
    match values::share(text)? {
        share if share <= 0.9 => Ok(share),
        _ => Err(format!(
            "`{text}` leaves nothing to schedule; write 0 to 90%"
        )),
    }
}
