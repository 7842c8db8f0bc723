//! Plaintext server with one and matrix server with three threads per connection: the ones of the load crate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bench_kit::server::{Work, announce, args};
use upshift_load::threads::{MatrixServer, PlaintextServer};

fn main() -> io::Result<()> {
    let args = args(&["default"]);
    let addresses = [args.address];
    let never = Arc::new(AtomicBool::new(false));
    match args.work {
        Work::Plaintext => {
            let server = PlaintextServer::bind(&addresses)?;
            announce(server.local_addrs()[0])?;
            server.serve(never)
        }
        Work::Matrix => {
            let server = MatrixServer::bind(&addresses)?;
            announce(server.local_addrs()[0])?;
            server.serve(never)
        }
    }
}
