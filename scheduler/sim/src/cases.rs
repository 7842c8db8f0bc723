//! Generates random cases, each of which consists of a machine, a workload and an interleaving.
//! `proptest` shrinks a case that breaks a law.
//!
//! Cases are small, because two or three vCPUs and a few coroutines are enough to show most
//! violations, and a million such cases run in minutes. One case in eight may have as many vCPUs as
//! its [`Family`] allows; one case in four has a floor. The distributions of computing time are
//! fixed, exponential and bimodal.

use std::fmt;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use upshift_core::{Floor, Level};

use crate::machine::{Machine, Preemption};
use crate::workload::{Op, Program, Workload};
use crate::{Law, Violation, simulate};

/// A machine and its workload.
#[derive(Clone, Debug)]
pub struct Case {
    /// The machine.
    pub machine: Machine,
    /// The workload, with its interleaving.
    pub workload: Workload,
}

impl Case {
    /// Simulates the case.
    ///
    /// # Errors
    /// The violation of a law.
    pub fn run(&self) -> Result<(), Violation> {
        simulate(self.machine, self.workload.clone()).map(drop)
    }
}

/// A family of machines for which cases are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Smallest and largest number of vCPUs.
    pub vcpus: (usize, usize),
    /// True if polls are suspended.
    pub preemption: bool,
    /// True if the clock of the CPUs is set back once.
    pub set_back: bool,
}

impl Family {
    /// A single vCPU, whose polls are not interrupted.
    pub const ONE: Family = Family {
        vcpus: (1, 1),
        preemption: false,
        set_back: false,
    };
    /// Two to four vCPUs, or up to 16 in one case of eight, whose polls are not interrupted.
    pub const SEVERAL: Family = Family {
        vcpus: (2, 16),
        preemption: false,
        set_back: false,
    };

    /// Returns the family with preemption.
    #[must_use]
    pub const fn preemptible(self) -> Family {
        Family {
            preemption: true,
            ..self
        }
    }

    /// Returns the family with a clock that is set back once, by half an hour.
    #[must_use]
    pub const fn set_back(self) -> Family {
        Family {
            set_back: true,
            ..self
        }
    }
}

/// Generates cases of a family.
pub fn cases(family: Family) -> impl Strategy<Value = Case> {
    let programs = prop::collection::vec(program(), 1..9);
    let delays = prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec(delay(), 0..80),
    ];
    let workload = (programs, delays).prop_map(|(mut programs, delays)| {
        // At least one coroutine starts without a spawn by another.
        programs[0].start.get_or_insert(0);
        Workload { programs, delays }
    });
    (machine(family), workload).prop_map(|(machine, workload)| Case { machine, workload })
}

/// Half an hour in nanoseconds.
const HALF_AN_HOUR: u64 = 1_800_000_000_000;

/// Largest number of vCPUs in seven of eight cases.
const FEW_VCPUS: usize = 4;

fn machine(family: Family) -> impl Strategy<Value = Machine> {
    let (min_vcpus, max_vcpus) = family.vcpus;
    let vcpus = prop_oneof![
        7 => min_vcpus..=max_vcpus.min(FEW_VCPUS),
        1 => min_vcpus..=max_vcpus,
    ];
    let floor = prop_oneof![3 => Just(None), 1 => floor().prop_map(Some)];
    let wake = prop_oneof![Just(35_000_u64), Just(1_000), Just(5_000)];
    let set_back = if family.set_back {
        let at = 0..3_000_000_u64;
        at.prop_map(|at| Some((at, HALF_AN_HOUR))).boxed()
    } else {
        Just(None).boxed()
    };
    let all = (vcpus, wake, floor, set_back);
    all.prop_map(move |(vcpus, wake, floor, set_back)| Machine {
        set_back,
        wake,
        floor,
        preemption: family.preemption.then_some(Preemption {
            suspension: 25_000,
            quantum: 300_000,
        }),
        ..Machine::new(vcpus)
    })
}

/// Generates a floor that begins between the levels that most programs use.
fn floor() -> impl Strategy<Value = Floor> {
    let from = prop_oneof![Just(Level::at::<11>()), Just(Level::at::<12>())];
    let percent = prop_oneof![1..=99_u8, Just(10)];
    let quantum = prop_oneof![Just(20_000_u64), Just(200_000), Just(2_000_000)];
    (from, percent, quantum).prop_map(|(from, percent, quantum)| Floor {
        from,
        percent,
        quantum,
    })
}

fn program() -> impl Strategy<Value = Program> {
    let level = prop_oneof![4 => 10..13_u8, 1 => 0..64_u8];
    let start = prop_oneof![
        3 => Just(None),
        2 => Just(Some(0)),
        2 => (0..2_000_000_u64).prop_map(Some),
    ];
    let ops = prop::collection::vec(op(), 1..7);
    (level, start, any::<u8>(), ops).prop_map(|(level, start, pinned, ops)| Program {
        level,
        pinned: pinned % 6 == 0 && start.is_none(),
        start,
        ops,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let other = 0..9_usize;
    let channel = 0..2_usize;
    let lock = 0..2_usize;
    prop_oneof![
        6 => time().prop_map(Op::Compute),
        4 => other.clone().prop_map(Op::Spawn),
        3 => channel.clone().prop_map(Op::Signal),
        2 => channel.clone().prop_map(Op::Wait),
        1 => (channel, time()).prop_map(|(channel, time)| Op::Later(channel, time)),
        2 => time().prop_map(Op::Sleep),
        2 => time().prop_map(Op::Receive),
        2 => Just(Op::Yield),
        2 => Just(Op::GiveWay),
        2 => other.clone().prop_map(Op::Join),
        1 => (other.clone(), time()).prop_map(|(other, time)| Op::JoinFor(other, time)),
        1 => (other.clone(), 9..14_u8).prop_map(|(other, level)| Op::Reprio(other, level)),
        3 => lock.clone().prop_map(Op::Lock),
        2 => lock.prop_map(Op::Unlock),
        1 => other.prop_map(Op::Cancel),
    ]
}

/// Generates a time in nanoseconds: fixed, exponential with a mean of 20 µs, or bimodal.
fn time() -> impl Strategy<Value = u64> {
    let exponential = (1..=u16::MAX).prop_map(|part| {
        let uniform = f64::from(part) / f64::from(u16::MAX);
        (-uniform.ln() * 20_000.0) as u64
    });
    prop_oneof![
        2 => Just(10_000_u64),
        3 => exponential,
        2 => Just(500_u64),
        1 => Just(2_000_000_u64),
    ]
}

fn delay() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0_u8), 2 => any::<u8>()]
}

/// A case that breaks a law, after shrinking.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The case.
    pub case: Case,
    /// The violation, with the timeline.
    pub violation: Violation,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?}\n{}", self.case, self.violation)
    }
}

/// Generates `count` cases of a family from a seed and runs them; a violation of a law in `except`
/// ends its case without an error.
///
/// # Errors
/// Returns the smallest case found that breaks a law outside `except`.
///
/// # Panics
/// Panics if the generator gives up.
pub fn search(
    family: Family,
    count: u32,
    seed: u64,
    except: &[Law],
) -> Result<(), Box<Counterexample>> {
    let config = Config {
        cases: count,
        failure_persistence: None,
        max_shrink_iters: 4_000,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let run = |case: Case| match case.run() {
        Err(violation) if !except.contains(&violation.law) => {
            Err(TestCaseError::fail(violation.description))
        }
        _ => Ok(()),
    };
    match TestRunner::new(config).run(&cases(family), run) {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, case)) => match case.run() {
            Err(violation) => Err(Box::new(Counterexample { case, violation })),
            Ok(()) => panic!("the case broke no law in a second run: {reason}\n{case:#?}"),
        },
        Err(error) => panic!("{error}"),
    }
}
