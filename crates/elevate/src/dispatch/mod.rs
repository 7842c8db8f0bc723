//! The logic of a preemptible vCPU, without threads, clocks or system calls.
//!
//! A vCPU is served by one thread at a time, the *current* one of its [`Seats`]. A *sentinel* thread of higher priority
//! sleeps until somebody may be waiting, looks, and [`Supervisor::decide`] says what to do: nothing, look again at a
//! certain time, or suspend the poll that is under way. Suspending revokes the current thread's [`Permit`] to use what the
//! threads of the vCPU share, and gives the vCPU to another seat.
//!
//! ```text
//!              rest                   somebody may wait: a bell (arrival, wake) or a timer
//!   Asleep ◄──────────── Looking ◄───────────────────────────────────────────────────── Asleep
//!     ▲                    │  │
//!     │  look at t         │  │ suspend: the permit is revoked, the next seat is current
//!     └────────────────────┘  ▼
//!                          Free ──hand over──► Current ──suspend──► Suspended ──resume──► Current
//! ```
//!
//! # What preemption may cost those who behave
//!
//! A look that ends in a suspension is paid by the one that overran. All others are precautions, and their cost (calibrated:
//! an interrupt, two switches; on a virtual machine tens of microseconds) is drawn from an allowance that refills with a
//! fixed share of the time. With the allowance overdrawn the sentinel is deaf until it has recovered, at most for
//! [`Limits::backstop`]. So a vCPU whose polls are all short loses at most that share of its CPU, and one whose polls
//! overrun is looked at as soon as somebody arrives.
//!
//! Source: the dispatcher, worker and switcher of the priority elevation trick (Yasukata and Ishiguro, APSys 2024), whose
//! timer per request this replaces.

mod barrier;
mod permit;
mod seats;
mod supervisor;

pub use barrier::{heavy_barrier, register_barrier};
pub use permit::{Busy, Permit};
pub use seats::{Role, Seats};
pub use supervisor::{Decision, Guard, Limits, Observation, Poll, Supervisor, Wake, Worth};
