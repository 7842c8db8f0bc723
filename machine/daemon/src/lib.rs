//! The machine-wide scheduler of Upshift: it runs whichever *process* holds the most urgent coroutine, on a stock kernel.
//!
//! Processes register over a Unix socket and publish which levels they hold runnable on a page of shared memory
//! ([`upshift_board`]). Per CPU the daemon ranks them and puts their threads into bands of SCHED_FIFO by the priority elevation
//! trick ([`upshift_elevate`]). Sources: the global priority bitmap of the SharedScheduler papers, and Yasukata and Ishiguro,
//! APSys 2024. `docs/daemon.md` is for users, `docs/threat-model.md` says what hostile processes can do.
//!
//! ```no_run
//! use upshift_daemon::{Config, Daemon};
//!
//! let daemon = Daemon::start(Config::default())?;
//! println!("{}", daemon.mode());
//! daemon.stop();
//! # Ok::<(), upshift_daemon::StartError>(())
//! ```
//!
//! ```text
//!  control thread ── connections, registrations, deaths, heartbeat
//!        │ mailboxes
//!  scheduler thread per CPU ── reads claims, ranks, elevates      (epoll on the doorbells of its vCPUs)
//!        │ upshift-elevate                         canary per CPU, and a watch that listens to all
//!  guardian process ── gives everything back if this process dies, demotes all if it is stopped
//! ```
//!
//! Invariants:
//! * No thread stays elevated: whatever is moved is recorded with the guardian first.
//! * Nothing a process writes is believed beyond its ceiling, and nothing it writes can stop a thread of the daemon.
//! * While no vCPU changes its rank, the daemon makes no system call but its waits, and each 36 ms
//!   a look at the elevated threads.
//! * Without rights it elevates nothing and says so (*cooperative*); the global page is kept all the same.
//!
//! | module | concern |
//! |---|---|
//! | `config` | the TOML file, ceilings |
//! | `listen`, `socket_file` | the socket; its file, which nobody else may replace |
//! | `control` | connections and registrations |
//! | `admission`, `bucket` | limits and rates |
//! | `peer` | the process at the other end |
//! | `rank` | the ranks of one CPU: pure |
//! | `cpu` | the scheduler of one CPU |
//! | `assign` | programs that know nothing of the daemon |
//! | `quota` | CPU quotas of cgroups |
//! | `roster` | recorded threads |
//! | `canary` | whether ordinary threads get to run on every CPU |
//! | `global` | the page that all clients read |
//! | `status` | the census |
//! | `scout` | ordinary threads that open files that may be another's |
//! | `log`, `metrics` | what it says, and its figures for Prometheus |
//! | `notify` | the service manager |
//! | `machine` | system calls, behind a trait |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

mod abort;
mod admission;
mod assign;
#[doc(hidden)]
pub mod bucket;
mod canary;
mod config;
mod control;
mod cpu;
mod daemon;
mod global;
mod listen;
mod living;
mod log;
pub mod machine;
mod metrics;
mod notify;
mod peer;
mod quota;
pub mod rank;
mod roster;
mod scout;
mod shared;
mod socket_file;
mod status;

pub use assign::{Assign, Bound, Fitting, Reservation};
pub use config::{
    Config, ConfigError, Limits, Member, Rule, Subject, Subordinate, default_socket, group, user,
};
pub use daemon::{Builder, Daemon, Mode, StartError};
pub use listen::ListenError;
pub use quota::cpu_quota;
