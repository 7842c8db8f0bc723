//! Plaintext and spin servers with one and matrix server with three threads per connection: the ones of the load crate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bench_kit::server::{announce, args_for};
use upshift_load::Burner;
use upshift_load::threads::{MatrixServer, PlaintextServer, SpinServer};

/// Which server to be.
#[derive(Clone, Copy)]
enum Work {
    Plaintext,
    Matrix,
    Spin,
}

fn main() -> io::Result<()> {
    let works = [
        ("plaintext", Work::Plaintext),
        ("matrix", Work::Matrix),
        ("spin", Work::Spin),
    ];
    let args = args_for(&works, &["default"]);
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
        Work::Spin => {
            let server = SpinServer::bind(&addresses, Burner::calibrate())?;
            announce(server.local_addrs()[0])?;
            server.serve(never)
        }
    }
}
