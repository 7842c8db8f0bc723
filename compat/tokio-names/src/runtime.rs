//! Implements tokio's runtime and its builder with runtimes of Upshift.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::thread::{self, ThreadId};

pub use upshift::Handle;
use upshift::Priority;
use upshift::task::JoinHandle;

/// A builder of runtimes with one vCPU, or with at least two.
pub struct Builder {
    vcpus: usize,
    is_paused: bool,
}

impl Builder {
    pub fn new_current_thread() -> Builder {
        Builder {
            vcpus: 1,
            is_paused: false,
        }
    }

    /// Returns a builder whose `block_on` thread serves a vCPU besides the workers.
    pub fn new_multi_thread() -> Builder {
        Builder {
            vcpus: 2,
            is_paused: false,
        }
    }

    pub fn worker_threads(&mut self, workers: usize) -> &mut Builder {
        self.vcpus = workers + 1;
        self
    }

    pub fn enable_all(&mut self) -> &mut Builder {
        self
    }

    pub fn enable_time(&mut self) -> &mut Builder {
        self
    }

    pub fn enable_io(&mut self) -> &mut Builder {
        self
    }

    pub fn start_paused(&mut self, is_paused: bool) -> &mut Builder {
        self.is_paused = is_paused;
        self
    }

    pub fn build(&mut self) -> io::Result<Runtime> {
        let runtime = upshift::Runtime::builder().vcpus(self.vcpus).build()?;
        Ok(Runtime {
            handle: runtime.handle(),
            runtime: ManuallyDrop::new(runtime),
            home: thread::current().id(),
            is_paused: self.is_paused,
        })
    }

    pub fn build_local(&mut self, _: LocalOptions) -> io::Result<LocalRuntime> {
        self.build()
    }
}

#[derive(Default)]
pub struct LocalOptions;

pub type LocalRuntime = Runtime;

/// A runtime of Upshift with tokio's interface. A runtime of Upshift belongs to one thread, but
/// tokio's tests require `Send`.
pub struct Runtime {
    runtime: ManuallyDrop<upshift::Runtime>,
    handle: Handle,
    home: ThreadId,
    is_paused: bool,
}

// SAFETY: no other thread uses the runtime, which is accessed only through `on_home_thread`, and
// any thread may use the handle.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

impl UnwindSafe for Runtime {}
impl RefUnwindSafe for Runtime {}

impl Runtime {
    pub fn new() -> io::Result<Runtime> {
        Builder::new_multi_thread().build()
    }

    fn on_home_thread(&self) -> &upshift::Runtime {
        assert_eq!(thread::current().id(), self.home);
        &self.runtime
    }

    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let runtime = self.on_home_thread();
        if !self.is_paused {
            return runtime.block_on(future);
        }
        runtime.block_on(async {
            upshift::time::pause();
            future.await
        })
    }

    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future, Priority::Inherit).unwrap()
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn enter(&self) -> EnterGuard {
        EnterGuard
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.home);
        // SAFETY: the runtime is dropped only here, on the thread that built it.
        unsafe { ManuallyDrop::drop(&mut self.runtime) };
    }
}

pub struct EnterGuard;
