//! A set of coroutines that yields their results in the order in which they exit.
//!
//! The handle of each coroutine has a waker of its own, which puts the coroutine's number into a
//! list and wakes the waiter of the set. A number is in the list at most once, and is in it if the
//! coroutine may have exited since its handle was last polled. So a result is taken in constant
//! time.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use upshift_core::Priority;

use super::{AbortHandle, Id, JoinError, JoinHandle, LocalSet};
use crate::Handle;
use crate::sync::{Lock, LockSafeWaker, may_proceed, register, wake};

/// Coroutines that are awaited together, in the order in which they exit. Dropping the set cancels
/// all coroutines in it.
///
/// Once the set is awaited, its coroutines run at the level of the waiter if that level is more
/// urgent than their own, until they exit or leave the set.
///
/// ```
/// use upshift::task::JoinSet;
///
/// upshift::Runtime::new()?.block_on(async {
///     let mut set = JoinSet::new();
///     set.spawn(async { 1 });
///     set.spawn(async { 2 });
///     let mut sum = 0;
///     while let Some(result) = set.join_next().await {
///         sum += result.unwrap();
///     }
///     assert_eq!(sum, 3);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinSet<T> {
    entries: Vec<Option<Entry<T>>>,
    free: Vec<usize>,
    exits: Arc<Exits>,
}

struct Entry<T> {
    handle: JoinHandle<T>,
    waker: Arc<EntryWaker>,
}

/// The coroutines that may have exited, and the waiter of the set.
struct Exits {
    state: Lock<State>,
}

struct State {
    /// The list: numbers of the coroutines that may have exited.
    numbers: VecDeque<usize>,
    waiter: Option<Waker>,
}

struct EntryWaker {
    number: usize,
    /// Set while the number is in the list, and for good once it need not be added any more.
    is_listed: AtomicBool,
    exits: Arc<Exits>,
}

impl Wake for EntryWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.exits.state.lock();
        state.numbers.push_back(self.number);
        let waiter = state.waiter.take();
        drop(state);
        if let Some(waiter) = waiter {
            wake(waiter);
        }
    }
}

impl<T> JoinSet<T> {
    /// Creates a set without coroutines.
    ///
    /// ```
    /// let set = upshift::task::JoinSet::<u32>::new();
    /// assert!(set.is_empty());
    /// ```
    #[must_use]
    pub fn new() -> JoinSet<T> {
        JoinSet {
            entries: Vec::new(),
            free: Vec::new(),
            exits: Arc::new(Exits {
                state: Lock::new(State {
                    numbers: VecDeque::new(),
                    waiter: None,
                }),
            }),
        }
    }

    /// Returns the number of coroutines whose results have not been taken.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(async {});
    /// assert_eq!(set.len(), 1);
    /// set.join_next().await;
    /// assert_eq!(set.len(), 0);
    /// # });
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns whether the set has no coroutines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn handles(&self) -> impl Iterator<Item = &JoinHandle<T>> {
        self.entries.iter().flatten().map(|entry| &entry.handle)
    }

    /// Cancels all coroutines; their results can still be taken.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(std::future::pending::<()>());
    /// set.abort_all();
    /// let result = set.join_next().await.unwrap();
    /// assert!(result.unwrap_err().is_cancelled());
    /// # });
    /// ```
    pub fn abort_all(&mut self) {
        self.handles().for_each(JoinHandle::abort);
    }

    /// Detaches all coroutines, which continue.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, receiver) = upshift::sync::oneshot::channel();
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(async move { sender.send(7) });
    /// set.detach_all();
    /// assert!(set.is_empty());
    /// assert_eq!(receiver.await, Ok(7));
    /// # });
    /// ```
    pub fn detach_all(&mut self) {
        self.entries.clear();
        self.free.clear();
        // Later wakes of the detached coroutines have no effect.
        *self = JoinSet::new();
    }
}

impl<T: 'static> JoinSet<T> {
    /// Adds a coroutine to the set, and its number to the list.
    fn insert(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        let waker = Arc::new(EntryWaker {
            number,
            is_listed: AtomicBool::new(false),
            exits: self.exits.clone(),
        });
        // The handle has not been polled yet, so the coroutine may have exited.
        waker.wake_by_ref();
        self.entries[number] = Some(Entry { handle, waker });
        abort
    }

    /// Starts a coroutine at the level of the caller.
    ///
    /// # Panics
    /// Where [`crate::spawn`] does.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// let stuck = set.spawn(std::future::pending());
    /// set.spawn(async { 7 });
    /// assert_eq!(set.join_next().await.unwrap().unwrap(), 7);
    /// stuck.abort();
    /// assert!(set.join_next().await.unwrap().is_err());
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        self.spawn_at(future, Priority::Inherit)
    }

    /// Starts a coroutine at a level.
    ///
    /// # Panics
    /// Where [`crate::spawn`] does.
    ///
    /// ```
    /// use upshift::{Level, task::JoinSet};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = JoinSet::new();
    /// set.spawn_at(async { "batch" }, Level::at::<40>());
    /// set.spawn_at(async { "urgent" }, Level::at::<2>());
    /// assert_eq!(set.join_all().await, ["urgent", "batch"]);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn_at<F>(&mut self, future: F, priority: impl Into<Priority>) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        self.insert(crate::spawn(future, priority))
    }

    /// Starts a coroutine in the runtime of `handle`.
    ///
    /// # Panics
    /// While that runtime shuts down; if memory is short.
    ///
    /// ```
    /// use upshift::{Runtime, task::JoinSet};
    ///
    /// let runtime = Runtime::builder().vcpus(1).build()?;
    /// let mut set = JoinSet::new();
    /// // The set is filled outside the runtime, before `block_on`.
    /// set.spawn_on(async { 7 }, &runtime.handle());
    /// assert_eq!(runtime.block_on(set.join_all()), [7]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_on<F>(&mut self, future: F, handle: &Handle) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        match handle.spawn(future, Priority::Inherit) {
            Ok(handle) => self.insert(handle),
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a coroutine that never leaves the caller's vCPU.
    ///
    /// # Panics
    /// Where [`crate::spawn_local`] does.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// let count = Rc::new(Cell::new(0));
    /// for _ in 0..3 {
    ///     let count = count.clone();
    ///     set.spawn_local(async move { count.set(count.get() + 1) });
    /// }
    /// set.join_all().await;
    /// assert_eq!(count.get(), 3);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn_local<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
        T: Send,
    {
        self.insert(super::spawn_local(future))
    }

    /// Starts a coroutine that the [`LocalSet`] waits for, too.
    ///
    /// # Panics
    /// Where [`crate::spawn_local`] does.
    #[track_caller]
    pub fn spawn_local_on<F>(&mut self, future: F, local: &LocalSet) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
        T: Send,
    {
        self.insert(local.spawn_local(future))
    }

    /// Runs a blocking function; see [`crate::spawn_blocking`].
    ///
    /// # Panics
    /// Where [`crate::spawn`] does.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// for path in ["/", "/usr"] {
    ///     set.spawn_blocking(move || std::fs::metadata(path).is_ok_and(|it| it.is_dir()));
    /// }
    /// assert_eq!(set.join_all().await, [true, true]);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn_blocking<F>(&mut self, function: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send,
    {
        self.insert(crate::spawn_blocking(function))
    }

    /// Waits for the next coroutine that exits, and returns its result; `None` if the set is empty.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a result.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(async { 7 });
    /// assert_eq!(set.join_next().await.unwrap().unwrap(), 7);
    /// assert!(set.join_next().await.is_none());
    /// # });
    /// ```
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// Does the same as [`join_next`](JoinSet::join_next), with the coroutine's id.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// let id = set.spawn(async { 7 }).id();
    /// assert_eq!(set.join_next_with_id().await.unwrap().unwrap(), (id, 7));
    /// # });
    /// ```
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|cx| self.poll_join_next_with_id(cx)).await
    }

    /// Returns the result of a coroutine that has exited, if there is one.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(async { 7 });
    /// assert!(set.try_join_next().is_none());
    /// upshift::task::yield_now().await;
    /// assert_eq!(set.try_join_next().unwrap().unwrap(), 7);
    /// # });
    /// ```
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.try_join_next_with_id()
            .map(|result| result.map(|(_, value)| value))
    }

    /// Does the same as [`try_join_next`](JoinSet::try_join_next), with the coroutine's id.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        while let Some(number) = self.exits.next() {
            if let Poll::Ready(result) = self.poll_entry(number) {
                return Some(result);
            }
        }
        None
    }

    /// Polls for the next result, for hand-written futures. Only the waker of the last call is
    /// woken.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_join_next_with_id(cx)
            .map(|next| next.map(|result| result.map(|(_, value)| value)))
    }

    /// Does the same as [`poll_join_next`](JoinSet::poll_join_next), with the coroutine's id.
    pub fn poll_join_next_with_id(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(Id, T), JoinError>>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        if !may_proceed() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(result) = self.try_join_next_with_id() {
                return Poll::Ready(Some(result));
            }
            if self.exits.wait(cx.waker()) {
                return Poll::Pending;
            }
        }
    }

    /// Polls the handle with this number. Removes the coroutine from the set if it has exited.
    fn poll_entry(&mut self, number: usize) -> Poll<Result<(Id, T), JoinError>> {
        let Some(entry) = self.entries.get_mut(number).and_then(Option::as_mut) else {
            return Poll::Pending;
        };
        // Cleared before the poll, so that an exit from here on sets it again.
        entry.waker.is_listed.store(false, Ordering::Release);
        let waker = Waker::from(entry.waker.clone());
        let id = entry.handle.id();
        let polled = Pin::new(&mut entry.handle).poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            // A late wake of the coroutine has no effect.
            entry.waker.is_listed.store(true, Ordering::Release);
            self.entries[number] = None;
            self.free.push(number);
        }
        polled.map_ok(|value| (id, value))
    }

    /// Cancels all coroutines, and waits until they have exited.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let shared = Arc::new(());
    /// let theirs = shared.clone();
    /// let mut set = upshift::task::JoinSet::new();
    /// set.spawn(async move {
    ///     let _keep = theirs;
    ///     std::future::pending::<()>().await;
    /// });
    /// set.shutdown().await;
    /// // The futures have been dropped with everything that they owned.
    /// assert!(set.is_empty() && Arc::strong_count(&shared) == 1);
    /// # });
    /// ```
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Waits for all coroutines. Returns their results in the order in which they exited.
    ///
    /// # Panics
    /// If a coroutine panicked or was cancelled; the remaining coroutines are cancelled then.
    ///
    /// ```
    /// use upshift::task::JoinSet;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let squares: JoinSet<u32> = (1..=3).map(|n| async move { n * n }).collect();
    /// assert_eq!(squares.join_all().await, [1, 4, 9]);
    /// # });
    /// ```
    pub async fn join_all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result {
                Ok(value) => results.push(value),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => panic!("{error}"),
                },
            }
        }
        results
    }
}

impl Exits {
    /// Takes the oldest number out of the list.
    fn next(&self) -> Option<usize> {
        self.state.lock().numbers.pop_front()
    }

    /// Registers `waker` for the next exit. Returns false, without registering it, if a coroutine
    /// may already have exited.
    fn wait(&self, waker: &Waker) -> bool {
        let mut waker = LockSafeWaker::new(waker);
        let mut state = self.state.lock();
        if !state.numbers.is_empty() {
            return false;
        }
        let old_waker = register(&mut state.waiter, &mut waker);
        drop(state);
        drop(old_waker);
        true
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.handles().for_each(JoinHandle::abort);
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T: Send + 'static, F> Extend<F> for JoinSet<T>
where
    F: Future<Output = T> + Send + 'static,
{
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

impl<T: Send + 'static, F> FromIterator<F> for JoinSet<T>
where
    F: Future<Output = T> + Send + 'static,
{
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> JoinSet<T> {
        let mut set = JoinSet::new();
        set.extend(futures);
        set
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}
