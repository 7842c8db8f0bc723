//! Runs the unmodified scheduler core on a simulated machine, in virtual time, and checks that it
//! keeps its promises.
//!
//! A simulation has one OS thread and 1 to 128 vCPUs (run queues, each served by simulated
//! threads). A simulated thread is called a *strand* and has its own stack (`strand.rs`). A strand
//! runs until it pauses, and an event loop (`world.rs`) decides which strand continues, and when.
//! So a poll takes as long as its program says, while other vCPUs poll, wake, steal and park, and a
//! simulation is deterministic.
//!
//! **Interleaving.** The core calls the simulated operating system through the trait `Host`
//! (`host.rs`). At every such call, every operation of a coroutine and every step of a vCPU's loop,
//! the strand may stand still while others continue, even while it holds a lock of the core. The
//! lengths of these delays are part of the case ([`Workload::delays`]), so that they are generated
//! and shrunk with the case. Between two calls of the host the core runs as one step, so this
//! simulator does not check the orderings of single atomic operations; the models under `loom` do.
//!
//! **The laws.** Each law is described by the states that break it. The assumptions are in
//! `ARCHITECTURE.md`:
//!
//! * *Order*: a poll begins although a more urgent coroutine that may run there was visibly ready
//!   when the vCPU began to pick the poll. On a machine with one vCPU, a poll that overtakes one of
//!   the same level breaks this law, too. If the machine has a floor (a share of the time that is
//!   reserved for less urgent levels), polls of the floor's levels may go ahead of more urgent
//!   ones.
//! * *Conservation*: a coroutine is ready, or its timer is due, or its data has arrived, and it
//!   waits for ever, or for longer than *B* ([`Machine::conservation_bound`]) while a vCPU idles
//!   all the time.
//! * *Progress*: a coroutine waits for too long while a vCPU polls less urgent ones, or idles. The
//!   bound is *B* plus the longest poll; with preemption, three suspensions more; with preemption
//!   on one vCPU, only *B* plus three suspensions.
//! * *Floor*: in some window of time, the floor's levels get less than their share, or go ahead of
//!   more urgent work for longer than [`Config::floor`](upshift_core::Config::floor) allows.
//! * *Truth*: between two steps, the published state is wrong. A ready coroutine's level is missing
//!   from the bitmap, which has a bit for each level with a ready coroutine; or a vCPU publishes a
//!   more urgent level than that of its poll; or the poll of a vCPU is not asked to yield to more
//!   urgent work there; or parked vCPUs are miscounted; or a coroutine that holds a mutex or is
//!   awaited is less urgent than a waiter, or keeps a level that a waiter lent to it although it
//!   has no waiter any more.
//!
//! The preemption rule has a separate model, [`suspension`], which runs the unmodified policy of
//! `upshift_core::preempt` over random loads.
//!
//! ```
//! use upshift_sim::{Machine, Op, Program, Workload, simulate};
//!
//! let child = Program::child(20, [Op::Compute(1_000)]);
//! let parent = Program::at(0, 20, [Op::Spawn(1), Op::Compute(5_000), Op::Join(1)]);
//! let longest = simulate(Machine::new(2), Workload::new([parent, child])).unwrap();
//! assert!(longest.while_idle < 100_000);
//! ```

mod cases;
mod host;
mod laws;
mod lock;
mod locks;
mod machine;
mod plot;
mod preempt;
mod program;
mod record;
mod scale;
mod serve;
mod strand;
pub mod suspension;
mod timeline;
mod workload;
mod world;

pub use cases::{Case, Counterexample, Family, cases, search};
pub use laws::{Law, LongestWaits, Violation};
pub use machine::{Machine, Preemption};
pub use plot::draw;
pub use scale::{Point, points, table};
pub use timeline::Timeline;
pub use workload::{Op, Program, Workload};

use world::World;

/// Runs a workload on a machine, to its end or until a law is broken.
///
/// # Errors
/// The first violation of a law.
///
/// # Panics
/// Panics unless the machine has 1 to 128 vCPUs.
pub fn simulate(machine: Machine, workload: Workload) -> Result<LongestWaits, Violation> {
    assert!((1..=128).contains(&machine.vcpus), "1 to 128 vCPUs");
    let laws = laws::Laws::new(&machine, &workload, true);
    let world = World::new(machine, workload, laws);
    world.run()?;
    let longest = world.laws.borrow().longest;
    Ok(longest)
}
