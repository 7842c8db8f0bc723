//! Runs one of the three test servers. Each binds all addresses, announces them
//! ([`announce`](super::listening::announce)), serves until SIGTERM or SIGINT and returns `Ok`.

use anyhow::Result;
use upshift_load::{Burner, machine};

use super::args::ServerArgs;
use super::{coroutine_matrix, coroutine_plaintext, coroutine_spin};

/// The work of a test server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Squares of matrices
    Matrix,
    /// `Hello, World!` over HTTP
    Plaintext,
    /// Requested amounts of CPU time
    Spin,
}

pub(crate) fn serve(service: Service, args: &ServerArgs) -> Result<()> {
    machine::raise_file_limit();
    match service {
        Service::Matrix => coroutine_matrix::serve(args),
        Service::Plaintext => coroutine_plaintext::serve(args),
        Service::Spin => coroutine_spin::serve(args, calibrate()),
    }
}

/// Relative error of a burn above which a warning is printed.
const LARGE_ERROR: f64 = 0.05;

/// Calibrates the burning of CPU time and warns about an inexact result.
fn calibrate() -> Burner {
    let burner = Burner::calibrate();
    if burner.error().abs() > LARGE_ERROR {
        eprintln!(
            "note: CPU time burnt differs from the CPU clock by {:+.0} %: something else uses this CPU, or its frequency changes",
            100.0 * burner.error()
        );
    }
    burner
}
