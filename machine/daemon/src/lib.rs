//! The machine-wide scheduler of Upshift, which runs the *process* with the most urgent coroutine,
//! on a stock kernel.
//!
//! Processes register over a Unix socket and publish their runnable levels on a page of shared
//! memory ([`upshift_board`]). The words of a vCPU on this page are its *claim*, and a vCPU *rings*
//! by writing to its doorbell. For each CPU the daemon ranks the processes and puts their threads
//! into *bands*, which are pairs of SCHED_FIFO priorities, by priority elevation
//! ([`upshift_elevate`]). All other threads are *ordinary*. The *winner* of a CPU is the vCPU that
//! runs first. The design follows the global priority bitmap of the SharedScheduler papers, and
//! Yasukata and Ishiguro, APSys 2024. `docs/daemon.md` is for users, `docs/threat-model.md` covers
//! hostile processes.
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
//!  scheduler thread per CPU ── reads claims, ranks, elevates (epoll on its doorbells)
//!        │ upshift-elevate                         canary per CPU, and a monitor of all
//!  guardian process ── restores threads if this process dies, demotes all if it is stopped
//! ```
//!
//! Invariants:
//! * No thread stays elevated, because every change is first recorded with the guardian.
//! * A claim of a process counts only up to the process's ceiling, and no data from a process can
//!   stop a thread of the daemon.
//! * While no vCPU changes its rank, the daemon's only system calls are its waits and, every 36 ms,
//!   a check of the elevated threads.
//! * Without rights the daemon elevates no thread and reports this (*cooperative*); it still
//!   publishes the global page.
//!
//! | module | concern |
//! |---|---|
//! | `config` | the TOML file and its ceilings |
//! | `admission` | the socket, the process at its other end, limits and rates |
//! | `control` | connections and registrations |
//! | `ranking` | ranks of one CPU (pure), its scheduler, recorded threads, the global page |
//! | `rules` | levels of programs that do not register |
//! | `bounds` | budgets that refill with time, quotas of cgroups |
//! | `canary` | detects that ordinary threads do not run on a CPU |
//! | `proc` | facts about other processes, looked up by ordinary threads |
//! | `status` | the census, Prometheus, messages, the service manager |
//! | `machine` | system calls, behind a trait |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

mod abort;
mod admission;
mod bounds;
mod canary;
mod config;
mod control;
mod daemon;
pub mod machine;
mod proc;
mod ranking;
mod rules;
mod shared;
mod status;

pub use bounds::quota::cpu_quota;
use ranking::cpu;
pub use ranking::rank;

pub use admission::listen::ListenError;
pub use config::{
    Config, ConfigError, Limits, Member, Rule, Subject, Subordinate, default_socket, group, user,
};
pub use daemon::{Builder, Daemon, Mode, StartError};
pub use rules::{Assign, Bound, Fitting};
