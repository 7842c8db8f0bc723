//! Runs the named case on each rank. The tests start this program by `mpirun`.
//!
//! A case succeeds if it succeeds on all ranks; rank 0 then prints `ok`. A rank that finds an error
//! panics, which ends the job.

#![allow(clippy::unwrap_used)]

mod collectives;
mod failure;
mod hostile;
mod points;
mod requests;
mod seeded;
mod sizes;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use upshift_mpi::{Launch, Result, World};

/// Runs the ranks of one test
#[derive(Parser)]
struct Arguments {
    name: String,
    #[arg(default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.name, arguments.seed) {
        Ok(0) => println!("ok"),
        Ok(_) => {}
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(name: &str, seed: u64) -> Result<usize> {
    let launch = Launch::new();
    macro_rules! case {
        ($launch:expr, $case:expr) => {
            $launch.run(async |world: World| {
                let rank = world.rank();
                $case(world).await?;
                Ok(rank)
            })
        };
    }
    let with_two_vcpus = launch.vcpus(2);
    let with_short_limits = launch
        .hang_limit(Duration::from_secs(3))
        .grace(Duration::from_millis(400));
    match name {
        "points" => case!(launch, points::run_all),
        "points2" => case!(with_two_vcpus, points::run_all),
        "preemptible" => case!(
            launch.preemption(upshift::Preemption::Preferred),
            requests::overtakes
        ),
        "collectives" => case!(launch, collectives::run_all),
        "collectives2" => case!(with_two_vcpus, collectives::run_all),
        "requests" => case!(launch, requests::run_all),
        "overtakes" => case!(launch, requests::overtakes),
        "hostile" => case!(launch, hostile::run_all),
        "huge" => case!(launch, hostile::huge),
        "sizes" => case!(launch, sizes::run_all),
        "sizes256" => case!(launch, sizes::huge),
        "long" => case!(launch, sizes::long),
        "storm" => case!(launch, async |world| seeded::storm(world, seed).await),
        "storm2" => case!(with_two_vcpus, async |world| seeded::storm(world, seed)
            .await),
        "idle" => case!(launch, requests::idle),
        "busy" => case!(launch, requests::busy),
        "board" => case!(
            launch.board(upshift::Board::Required),
            requests::beside_a_daemon
        ),
        "killed" => case!(with_short_limits, failure::killed),
        "hung" => case!(with_short_limits, failure::hung),
        "error" => case!(with_short_limits, failure::error),
        "panic" => case!(with_short_limits, failure::panics),
        other => panic!("no case {other:?}"),
    }
}
