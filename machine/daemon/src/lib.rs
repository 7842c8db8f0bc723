//! The machine-wide scheduler of Upshift. On each CPU it runs the *process* whose runnable
//! coroutine is the most urgent, on a kernel without changes.
//!
//! A registered process runs coroutines on worker threads. Each worker serves a *vCPU*, that is, a
//! set of run queues bound to one CPU. The process registers over a Unix socket and publishes the
//! levels of its runnable coroutines on a page of shared memory ([`upshift_board`]). The words of a
//! vCPU on this page are its *claim*. A vCPU *rings* the daemon by writing to its doorbell, an
//! eventfd. In turn, the daemon publishes the order of the vCPUs on the *global page*, which all
//! processes can read.
//!
//! For each CPU the daemon ranks the vCPUs and moves their threads into *bands*, which are pairs of
//! SCHED_FIFO priorities, with [`upshift_elevate`]. All other threads are *ordinary*. The *winner*
//! of a CPU is the vCPU that runs first. The design follows the global priority bitmap of the
//! SharedScheduler papers, and the priority elevation of Yasukata and Ishiguro (APSys 2024).
//! `docs/daemon.md` is for users, `docs/threat-model.md` covers hostile processes.
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
//! * No thread stays elevated after the daemon has died or has been stopped, because every change
//!   is recorded with the guardian process before it is made.
//! * A claim of a process counts only up to the process's ceiling, and no data from a process can
//!   stop a thread of the daemon.
//! * While no vCPU changes its rank, the daemon's only system calls are its waits and, every 36 ms,
//!   a check of the elevated threads.
//! * Without the privilege to set SCHED_FIFO, the daemon elevates no thread and reports this
//!   (*cooperative* mode). It still publishes the global page.
//!
//! | module | concern |
//! |---|---|
//! | `config` | the TOML file and its ceilings |
//! | `admission` | the socket, the process at its other end, limits and rates |
//! | `control` | connections and registrations |
//! | `ranking` | ranks of one CPU, its scheduler, recorded threads, the global page |
//! | `rules` | levels of programs that do not register |
//! | `bounds` | budgets that refill with time, quotas of cgroups |
//! | `canary` | detects that real-time threads keep ordinary threads from a CPU |
//! | `proc` | facts about other processes, looked up by ordinary threads |
//! | `status` | reports about processes and threads, Prometheus, messages, the service manager |
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
