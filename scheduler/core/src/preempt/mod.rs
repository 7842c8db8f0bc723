//! When a poll is suspended: the decision alone, without threads, clocks or system calls. All times are nanoseconds.
//!
//! Suspending a poll and going on with it later costs *C* of CPU time ([`Rule::cost`]). How long the poll will go on is not known. That is
//! the ski-rental problem: to rent (leave the poll alone) until the rent has reached the price, and then to buy (suspend it), costs at most
//! twice what knowing the future would have.
//!
//! * For something **more urgent** a poll is suspended when it has run for *C* since it began. One that has been suspended before has, and makes
//!   room at once.
//! * For an **equal** not before it has run for its quantum, which is at least 4 *C*: for itself and for the other a suspension, and the looks that lead to it;
//!   and not before it pays: see [`Lengths`].
//! * Polls of a level that have had their quantum do not interrupt each other: they go on in turn when something fresh makes one of them make room,
//!   and get a turn each [`KEPT`].
//! * Each suspension is paid from a [`TokenBucket`](crate::TokenBucket) of nanoseconds, which gets
//!   one part in [`SHARE`] of the time. So interrupting takes at most that share of the time, and a
//!   burst. A suspension that finds the bucket empty waits until it holds *C*, for at most
//!   [`SHARE`] · *C*.
//! * To find out whether a poll is to be suspended costs a look. Looks that bring nothing take at most one part in [`SHARE`]² of the time, half of
//!   what suspensions take: a premium where nothing overruns, more where something does. See [`Policy::is_deaf_for`].
//!
//! A suspended poll may hold what others wait for. While a poll is blocked, or one has run for [`KEPT`] and may be spinning, suspended polls
//! get a turn of [`TURN`] every [`KEPT`], whatever else is ready; and [`SHARE`] times as far apart while nothing shows.
//!
//! All of it rests on two numbers: the share of the time that interrupting may cost, and for how long a suspended poll may be kept from the
//! CPU. `docs/preemption.md` states the bounds as theorems; the simulator holds this code against them, and the runtime's watcher
//! runs it.

mod lengths;
mod policy;
mod rule;

pub use crate::base::events::Waits;
pub use lengths::Lengths;
pub use policy::{Decision, Looks, Policy, Sight};
pub use rule::{Ran, Rule};

/// Suspending may take one part in so many of the time, and so may the turns of suspended polls while another may depend on them.
pub const SHARE: u64 = 10;
/// For how long a suspended poll may be kept from the CPU while another one may depend on it, times the number of suspended polls.
pub const KEPT: u64 = 2_000_000;
/// How long it then runs.
pub const TURN: u64 = KEPT / SHARE;
/// How far apart turns are while nothing shows that a suspended poll is waited for: one part in `SHARE`² of the time.
pub const SELDOM: u64 = SHARE * KEPT;
/// What may be spent on suspensions at once, after a time without any, and half of it on looks: a burst takes no longer than a suspended poll may be kept.
pub const BURST: u64 = KEPT;
/// What suspensions for equals leave in the account for the more urgent: half of what it can hold. So that equals which take turns for long do
/// not make something urgent wait for the account.
pub const RESERVE: u64 = BURST / 2;
