//! The unmodified core under a simulated host.
//!
//! One OS thread, virtual time, 1 to 128 vCPUs. A thread of a real machine is a stack of its own
//! here (`strand.rs`); a strand runs until it pauses, and an event loop (`world.rs`) decides which
//! one continues, and when. So a poll takes as long as its program says, while other vCPUs poll,
//! wake, steal and park beside it, and the same case always takes the same course.
//!
//! **Interleaving.** At every upcall of the core (`host.rs`), every operation of a coroutine and
//! every step of a vCPU's loop, the strand may stand still while others continue, also with a lock
//! of the core held. How long it does is part of the case ([`Workload::delays`]), so that it is
//! generated and shrunk with it. Between two upcalls the core runs as one step: the orderings of
//! single atomic operations are checked by the models under `loom`.
//!
//! **The laws**, and how each is broken; the assumptions are in `ARCHITECTURE.md`:
//!
//! * *Order*: a poll begins while a more urgent coroutine that may run there was visibly ready when
//!   its pick began; on a machine with one vCPU also when it overtakes an equal. Turns of a floor
//!   may go ahead of levels above it.
//! * *Conservation*: a coroutine waits (ready, or its timer due, or its data arrived) beside a vCPU
//!   that idles all the time, for longer than *B* ([`Machine::conservation_bound`]); or for ever.
//! * *Progress*: the time that a coroutine waits while a vCPU polls less urgent ones, or idles,
//!   exceeds the longest poll and *B*; with preemption, on one vCPU, three suspensions and *B*.
//! * *Floor*: in some window the floor's levels exceed a bound of
//!   [`Config::floor`](upshift_core::Config::floor).
//! * *Truth*: between two steps a ready coroutine is missing in the bitmap; or a vCPU shows a more
//!   urgent level than that of its poll, or is not asked to yield to more urgent work there; or
//!   parked vCPUs are miscounted; or a coroutine that holds a mutex or is awaited is less urgent
//!   than a waiter, or stays raised when it has none.
//!
//! The preemption rule has a model of its own, [`suspending`]: the unmodified decision of
//! `upshift_core::preempt`, over random loads.
//!
//! ```
//! use upshift_sim::{Machine, Op, Program, Workload, simulate};
//!
//! let child = Program::child(20, [Op::Compute(1_000)]);
//! let parent = Program::at(0, 20, [Op::Spawn(1), Op::Compute(5_000), Op::Join(1)]);
//! let longest = simulate(Machine::new(2), Workload::of([parent, child])).unwrap();
//! assert!(longest.beside_idle < 100_000);
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
pub mod suspending;
mod timeline;
mod workload;
mod world;

pub use cases::{Case, Family, Found, cases, search};
pub use laws::{Law, Longest, Violation};
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
pub fn simulate(machine: Machine, workload: Workload) -> Result<Longest, Violation> {
    assert!((1..=128).contains(&machine.vcpus), "1 to 128 vCPUs");
    let laws = laws::Laws::new(&machine, &workload, true);
    let world = World::new(machine, workload, laws);
    world.run()?;
    let longest = world.laws.borrow().longest;
    Ok(longest)
}
