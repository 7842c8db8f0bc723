//! hyper's executor, which spawns coroutines at a level.

use std::future::Future;

use upshift_core::Priority;

/// An executor that spawns the futures that hyper passes (the streams of an HTTP/2 connection, the
/// connections of a client) as coroutines of one priority.
///
/// A future that cannot be spawned, because the runtime shuts down, is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spawner {
    priority: Priority,
}

impl Spawner {
    /// Creates a spawner of this priority; [`Priority::Inherit`] stands for the level of the
    /// coroutine that polls the connection.
    pub fn new(priority: impl Into<Priority>) -> Spawner {
        Spawner {
            priority: priority.into(),
        }
    }
}

impl<F> ::hyper::rt::Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        if let Ok(handle) = crate::try_spawn(future, self.priority) {
            handle.detach();
        }
    }
}
