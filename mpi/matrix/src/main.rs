//! Runs the matrix server, as in `mpirun -n 4 upshift-mpi-matrix`. Rank 0 prints its address, and
//! each rank prints its pid. The server ends when the standard input of rank 0 ends.

use std::io::Read;
use std::process::ExitCode;

use clap::Parser;
use upshift::net::TcpListener;
use upshift::{Board, Level, spawn, spawn_blocking};
use upshift_mpi::{Error, Launch, Result, World};
use upshift_mpi_matrix::{Levels, Matrices, SPREAD, serve};

/// The matrix server whose large products are spread over the ranks of an MPI job.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Address on which rank 0 listens
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Minimum order of a product that is spread over all ranks
    #[arg(long, default_value_t = SPREAD)]
    spread: usize,
    /// Treat all requests as equally urgent, for comparison
    #[arg(long)]
    no_levels: bool,
    /// Join the machine's daemon, which must be running
    #[arg(long)]
    board: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let board = if arguments.board {
        Board::Required
    } else {
        Board::Off
    };
    // SAFETY: no message is longer than its buffer, since both sides compute the lengths of all
    // messages and collectives of the server from the order of the matrix, and a request is
    // received into a buffer of its own length.
    let launch = unsafe { Launch::new().single_copy() };
    match launch
        .board(board)
        .run(async |world| run_rank(world, &arguments).await)
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_rank(world: World, arguments: &Arguments) -> Result<()> {
    let levels = if arguments.no_levels {
        Levels::One
    } else {
        Levels::Eight
    };
    let matrices = Matrices::new(&world, levels, arguments.spread).await?;
    println!("rank {} is process {}", world.rank(), std::process::id());
    if world.rank() > 0 {
        matrices.ended().await;
        return Ok(());
    }
    let system = |error: std::io::Error| Error::System(format!("{}: {error}", arguments.listen));
    let listener = TcpListener::bind(&arguments.listen).map_err(system)?;
    println!("listening on {}", listener.local_addr().map_err(system)?);
    let front = spawn(serve(matrices.clone(), listener), Level::at::<0>());
    spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()))
        .await
        .map_err(|error| Error::System(error.to_string()))?
        .map_err(|error| Error::System(format!("standard input: {error}")))?;
    front.cancel();
    let end = matrices.end().await;
    if end.is_ok() {
        matrices.ended().await;
    }
    if world.failure().is_some() {
        // mpirun also closes the input when a rank has died. Then clients are refused until the
        // watchdog ends this rank.
        std::future::pending::<()>().await;
    }
    end
}
