//! The thread models: three threads per connection (matrices), one (plaintext, spin).
//!
//! The kernel schedules them, so levels have no effect. With `--pin` every thread stays on the
//! given CPUs, because threads inherit the affinity of the one that accepts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use upshift_load::Burner;
use upshift_load::threads::{MatrixServer, PlaintextServer, SpinServer};

use super::listening::{announce, bind_advice};
use super::options::ServerOptions;
use upshift_load::machine;

/// Squares of matrices: receive, compute and send are a thread each.
pub(crate) fn serve_matrix(options: &ServerOptions) -> Result<()> {
    let (addresses, stop) = prepare(options)?;
    let server = MatrixServer::bind(&addresses).map_err(bind_advice)?;
    announce(server.local_addrs().iter().copied())?;
    server.serve(stop).context("the server failed")
}

/// `Hello, World!`: a thread per connection.
pub(crate) fn serve_plaintext(options: &ServerOptions) -> Result<()> {
    let (addresses, stop) = prepare(options)?;
    let server = PlaintextServer::bind(&addresses).map_err(bind_advice)?;
    announce(server.local_addrs().iter().copied())?;
    server.serve(stop).context("the server failed")
}

/// CPU time, as much as is asked for: a thread per connection.
pub(crate) fn serve_spin(options: &ServerOptions, burner: Burner) -> Result<()> {
    let (addresses, stop) = prepare(options)?;
    let server = SpinServer::bind(&addresses, burner).map_err(bind_advice)?;
    announce(server.local_addrs().iter().copied())?;
    server.serve(stop).context("the server failed")
}

fn prepare(options: &ServerOptions) -> Result<(Vec<SocketAddr>, Arc<AtomicBool>)> {
    machine::pin(&options.pin).context("cannot pin the server")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot handle SIGTERM and Ctrl-C")?;
    }
    Ok((options.addresses.iter().map(|a| a.address).collect(), stop))
}
