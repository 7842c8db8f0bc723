//! A `block_on` for tests that need a runtime with one vCPU.

use upshift::Runtime;

/// Runs a future to its end on a runtime of one vCPU.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(future)
}
