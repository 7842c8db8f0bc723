//! A semaphore, that is, a number of permits, which waiters get in order of urgency.
//!
//! Invariant, under the lock: the free permits do not suffice for the first waiter. So a newcomer
//! may take permits only if it is more urgent than the first waiter, and every call that adds
//! permits or removes a waiter hands out all permits that it can. Each operation takes the lock
//! once (one atomic exchange), and once more for each further waiter that it wakes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use upshift_core::Level;

use super::atomic::const_fn;
use super::lock::{Guard, Lock};
use super::park;
use super::wait_queue::{Key, WaitQueue};
use super::waker::LockSafeWaker;
use super::{may_proceed, waiting_level, wake};

mod error;
mod permit;

pub use error::{AcquireError, TryAcquireError};
pub use permit::{OwnedSemaphorePermit, SemaphorePermit};

/// Limits the number of coroutines that do something at once.
///
/// Waiters are served most urgent level first, first come first served within a level. A waiter
/// gets all its permits at once.
///
/// *Starvation.* A waiter for many permits is not overtaken by requests of its own or a less urgent
/// level, even by small ones, because free permits accumulate until they suffice for the waiter.
/// More urgent requests do overtake it, and a steady stream of them can keep it waiting for ever.
/// A request for more permits than there will ever be waits until the semaphore is closed, and so
/// do the requests behind it.
///
/// ```
/// use std::sync::Arc;
/// use upshift::{Priority, sync::Semaphore};
///
/// upshift::Runtime::new()?.block_on(async {
///     let limit = Arc::new(Semaphore::new(2));
///     for job in 0..8 {
///         let permit = limit.clone().acquire_owned().await?;
///         upshift::spawn(
///             async move {
///                 println!("at most two at a time: {job}");
///                 drop(permit);
///             },
///             Priority::Inherit,
///         )
///         .detach();
///     }
///     // All permits: all jobs are done.
///     let _all = limit.acquire_many(2).await?;
///     Ok::<(), upshift::sync::AcquireError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Semaphore {
    state: Lock<State>,
}

struct State {
    permits: usize,
    closed: bool,
    waiters: WaitQueue<Claim>,
}

/// The request of a waiter; once the request has been granted, its result.
#[derive(Clone, Copy)]
enum Claim {
    Permits(usize),
    Closed,
}

impl State {
    /// Returns true if a request at this level may be served before all waiters.
    fn suffices(&self, permits: usize, level: Level) -> bool {
        permits == 0
            || (permits <= self.permits
                && self.waiters.first().is_none_or(|(first, _)| level < first))
    }

    /// Hands permits to the first waiter if there are enough. Returns its waker, and true if the
    /// permits suffice for the next waiter too.
    fn grant(&mut self) -> Option<(Waker, bool)> {
        let waker = match self.waiters.first()?.1 {
            Claim::Permits(wanted) if wanted <= self.permits => {
                self.permits -= wanted;
                self.waiters.pop(|claim| claim)?
            }
            _ => return None,
        };
        let more = matches!(self.waiters.first(), Some((_, Claim::Permits(wanted))) if wanted <= self.permits);
        Some((waker, more))
    }
}

impl Semaphore {
    /// Largest number of permits of a semaphore.
    pub const MAX_PERMITS: usize = usize::MAX >> 3;

    const_fn! {
        /// Creates a semaphore with `permits` free permits.
        ///
        /// # Panics
        /// If `permits` is above [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
        ///
        /// ```
        /// static LIMIT: upshift::sync::Semaphore = upshift::sync::Semaphore::new(100);
        /// ```
        #[must_use]
        #[track_caller]
        pub const fn new(permits: usize) -> Semaphore {
            assert!(permits <= Semaphore::MAX_PERMITS, "a semaphore has at most MAX_PERMITS");
            Semaphore {
                state: Lock::new(State {
                    permits,
                    closed: false,
                    waiters: WaitQueue::new(),
                }),
            }
        }
    }

    const_fn! {
        /// Creates a semaphore: the same as [`new`](Semaphore::new), under tokio's name.
        ///
        /// # Panics
        /// If `permits` is above [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
        ///
        /// ```
        /// use upshift::sync::Semaphore;
        ///
        /// static CONNECTIONS: Semaphore = Semaphore::const_new(100);
        /// let _permit = CONNECTIONS.try_acquire()?;
        /// assert_eq!(CONNECTIONS.available_permits(), 99);
        /// # Ok::<(), upshift::sync::TryAcquireError>(())
        /// ```
        #[must_use]
        #[track_caller]
        pub const fn const_new(permits: usize) -> Semaphore {
            Semaphore::new(permits)
        }
    }

    /// Returns the number of free permits.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// assert_eq!(semaphore.available_permits(), 3);
    /// ```
    #[must_use]
    pub fn available_permits(&self) -> usize {
        self.state.lock().permits
    }

    /// Returns true if [`close`](Semaphore::close) has been called.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// assert!(!semaphore.is_closed());
    /// semaphore.close();
    /// assert!(semaphore.is_closed());
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Acquires a permit, waiting until one is free. The permit is given back when it is
    /// dropped.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. It then leaves the queue, and permits that it had
    /// been handed go to the next waiters.
    ///
    /// # Errors
    /// [`AcquireError`] (from the future) when the semaphore is closed.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// let permit = semaphore.acquire().await?;
    /// assert_eq!(semaphore.available_permits(), 2);
    /// drop(permit);
    /// assert_eq!(semaphore.available_permits(), 3);
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// Acquires several permits at once, waiting until all are free. A request for 0 is ready at
    /// once.
    ///
    /// # Cancellation safety
    /// Like that of [`acquire`](Semaphore::acquire), because a future never holds only a part of
    /// its permits.
    ///
    /// # Errors
    /// [`AcquireError`] (from the future) when the semaphore is closed.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// let two = semaphore.acquire_many(2).await?;
    /// assert_eq!((two.num_permits(), semaphore.available_permits()), (2, 1));
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire_many(&self, permits: u32) -> Acquire<'_> {
        Acquire {
            semaphore: self,
            request: Request::new(permits as usize),
        }
    }

    /// [`acquire`](Semaphore::acquire) with a permit that can be moved into another coroutine.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::{Priority, sync::Semaphore};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// let permit = semaphore.clone().acquire_owned().await?;
    /// upshift::spawn(async move { drop(permit) }, Priority::Inherit).detach();
    /// semaphore.acquire().await?; // Waits for the other coroutine.
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire_owned(self: Arc<Self>) -> AcquireOwned {
        self.acquire_many_owned(1)
    }

    /// [`acquire_many`](Semaphore::acquire_many) with permits that can be moved into another
    /// coroutine.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// let all = semaphore.clone().acquire_many_owned(3).await?;
    /// assert_eq!((all.num_permits(), semaphore.available_permits()), (3, 0));
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire_many_owned(self: Arc<Self>, permits: u32) -> AcquireOwned {
        AcquireOwned {
            semaphore: self,
            request: Request::new(permits as usize),
        }
    }

    /// Acquires a permit, if one is free and no waiter goes first.
    ///
    /// # Errors
    /// [`TryAcquireError::NoPermits`] if the caller would have to wait,
    /// [`TryAcquireError::Closed`] if the semaphore is closed.
    ///
    /// ```
    /// use upshift::sync::{Semaphore, TryAcquireError};
    ///
    /// let semaphore = Semaphore::new(1);
    /// let permit = semaphore.try_acquire()?;
    /// assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    /// # drop(permit);
    /// # Ok::<(), TryAcquireError>(())
    /// ```
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Acquires several permits at once, if they are free and no waiter goes first.
    ///
    /// # Errors
    /// The errors of [`try_acquire`](Semaphore::try_acquire).
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// let two = semaphore.try_acquire_many(2)?;
    /// assert!(semaphore.try_acquire_many(2).is_err());
    /// drop(two);
    /// assert!(semaphore.try_acquire_many(2).is_ok());
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn try_acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_take(permits as usize)?;
        Ok(SemaphorePermit::new(self, permits as usize))
    }

    /// [`try_acquire`](Semaphore::try_acquire) with a permit that can be moved into another
    /// coroutine.
    ///
    /// # Errors
    /// The errors of [`try_acquire`](Semaphore::try_acquire).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// let permit = semaphore.clone().try_acquire_owned()?;
    /// std::thread::spawn(move || drop(permit)).join().unwrap();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// [`try_acquire_many`](Semaphore::try_acquire_many) with permits that can be moved into
    /// another coroutine.
    ///
    /// # Errors
    /// The errors of [`try_acquire`](Semaphore::try_acquire).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// let two = semaphore.clone().try_acquire_many_owned(2)?;
    /// assert_eq!((two.num_permits(), semaphore.available_permits()), (2, 1));
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn try_acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_take(permits as usize)?;
        Ok(OwnedSemaphorePermit::new(self, permits as usize))
    }

    /// [`acquire`](Semaphore::acquire) for threads: blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(1);
    /// let permit = semaphore.blocking_acquire()?;
    /// assert_eq!(semaphore.available_permits(), 0);
    /// # drop(permit);
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        park::block_on(self.acquire())
    }

    /// [`acquire_many`](Semaphore::acquire_many) for threads: blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(4);
    /// let three = semaphore.blocking_acquire_many(3)?;
    /// assert_eq!(semaphore.available_permits(), 1);
    /// # drop(three);
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, AcquireError> {
        park::block_on(self.acquire_many(permits))
    }

    /// [`acquire_owned`](Semaphore::acquire_owned) for threads: blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// let permit = semaphore.clone().blocking_acquire_owned()?;
    /// std::thread::spawn(move || drop(permit)).join().unwrap();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError> {
        park::block_on(self.acquire_owned())
    }

    /// [`acquire_many_owned`](Semaphore::acquire_many_owned) for threads: blocks the calling
    /// thread.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(4));
    /// let three = semaphore.clone().blocking_acquire_many_owned(3)?;
    /// assert_eq!(three.num_permits(), 3);
    /// # Ok::<(), upshift::sync::AcquireError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        park::block_on(self.acquire_many_owned(permits))
    }

    /// Takes free permits, if no waiter goes first.
    fn try_take(&self, permits: usize) -> Result<(), TryAcquireError> {
        let level = waiting_level();
        let mut state = self.state.lock();
        if state.closed {
            return Err(TryAcquireError::Closed);
        }
        if !state.suffices(permits, level) {
            return Err(TryAcquireError::NoPermits);
        }
        state.permits -= permits;
        Ok(())
    }

    /// Adds permits, and hands them to the waiters for which they suffice.
    ///
    /// # Panics
    /// If the sum would be above [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(0);
    /// semaphore.add_permits(2);
    /// assert_eq!(semaphore.available_permits(), 2);
    /// ```
    #[track_caller]
    pub fn add_permits(&self, permits: usize) {
        let mut state = self.state.lock();
        match state.permits.checked_add(permits) {
            Some(sum) if sum <= Semaphore::MAX_PERMITS => state.permits = sum,
            _ => {
                drop(state);
                panic!("a semaphore has at most MAX_PERMITS");
            }
        }
        self.grant(state);
    }

    /// Removes up to `permits` free permits from the semaphore. Returns the number removed.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// assert_eq!(semaphore.forget_permits(2), 2);
    /// assert_eq!(semaphore.forget_permits(2), 1);
    /// ```
    pub fn forget_permits(&self, permits: usize) -> usize {
        let mut state = self.state.lock();
        let num_removed = permits.min(state.permits);
        state.permits -= num_removed;
        num_removed
    }

    /// Closes the semaphore, so that waiters and later requests get an error. Permits that have
    /// been handed out stay valid.
    ///
    /// ```
    /// use upshift::sync::{Semaphore, TryAcquireError};
    ///
    /// let semaphore = Semaphore::new(1);
    /// semaphore.close();
    /// assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
    /// assert!(semaphore.blocking_acquire().is_err());
    /// ```
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let wakers = state.waiters.pop_all(|_| Claim::Closed);
        drop(state);
        wakers.into_iter().for_each(wake);
    }

    /// Hands permits to the waiters for which they suffice, and wakes those waiters.
    fn grant<'a>(&'a self, mut state: Guard<'a, State>) {
        while let Some((waker, more)) = state.grant() {
            drop(state);
            wake(waker);
            if !more {
                return;
            }
            state = self.state.lock();
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("permits", &self.available_permits())
            .finish_non_exhaustive()
    }
}

/// A request for permits, on behalf of a future.
#[derive(Debug)]
struct Request {
    permits: usize,
    key: Option<Key>,
}

impl Request {
    fn new(permits: usize) -> Request {
        Request { permits, key: None }
    }

    fn poll(
        &mut self,
        semaphore: &Semaphore,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), AcquireError>> {
        let level = waiting_level();
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = semaphore.state.lock();
        let is_ready = match self.key {
            Some(key) => state.waiters.is_granted(key),
            None => state.closed || state.suffices(self.permits, level),
        };
        if is_ready && !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.key {
            Some(key) if is_ready => {
                self.key = None;
                match state.waiters.release(key).granted {
                    Some(Claim::Closed) => Poll::Ready(Err(AcquireError(()))),
                    _ => Poll::Ready(Ok(())),
                }
            }
            Some(key) => {
                let old_waker = state.waiters.refresh(key, level, &mut waker);
                // After a change of level another waiter may be the first.
                semaphore.grant(state);
                drop(old_waker);
                Poll::Pending
            }
            None if state.closed => Poll::Ready(Err(AcquireError(()))),
            None if is_ready => {
                state.permits -= self.permits;
                Poll::Ready(Ok(()))
            }
            None => {
                let waker = waker.take();
                let claim = Claim::Permits(self.permits);
                self.key = Some(state.waiters.insert(level, claim, waker));
                Poll::Pending
            }
        }
    }

    /// Leaves the queue, and gives back permits that were granted but not used.
    fn cancel(&mut self, semaphore: &Semaphore) {
        let Some(key) = self.key.take() else {
            return;
        };
        let mut state = semaphore.state.lock();
        let released = state.waiters.release(key);
        if let Some(Claim::Permits(permits)) = released.granted {
            state.permits = state.permits.saturating_add(permits);
        }
        semaphore.grant(state);
    }
}

/// The future of [`Semaphore::acquire`] and [`Semaphore::acquire_many`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    request: Request,
}

impl<'a> Future for Acquire<'a> {
    type Output = Result<SemaphorePermit<'a>, AcquireError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore;
        let permits = self.request.permits;
        self.request
            .poll(semaphore, cx)
            .map_ok(|()| SemaphorePermit::new(semaphore, permits))
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        self.request.cancel(self.semaphore);
    }
}

/// The future of [`Semaphore::acquire_owned`] and [`Semaphore::acquire_many_owned`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct AcquireOwned {
    semaphore: Arc<Semaphore>,
    request: Request,
}

impl Future for AcquireOwned {
    type Output = Result<OwnedSemaphorePermit, AcquireError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let AcquireOwned { semaphore, request } = self.get_mut();
        request
            .poll(semaphore, cx)
            .map_ok(|()| OwnedSemaphorePermit::new(semaphore.clone(), request.permits))
    }
}

impl Drop for AcquireOwned {
    fn drop(&mut self) {
        self.request.cancel(&self.semaphore);
    }
}
