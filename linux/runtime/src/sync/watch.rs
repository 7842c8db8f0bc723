//! The latest value, for many that look at it.
//!
//! The version counts the values; its lowest bit says that the senders are gone. It changes
//! while the value is locked for writing, so a reader of the value under its lock knows its
//! version. What waits has asked for a notification before it looks at the version, so it
//! misses none. The lock of the value is `std`'s: a reference to the value may be held for
//! long, and a coroutine that does, does not `await`.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};

use super::atomic::{AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::{Notify, proceed};

pub mod error;

use error::{RecvError, SendError};

const CLOSED: u64 = 1;
const STEP: u64 = 2;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    senders: AtomicU64,
    receivers: AtomicU64,
    /// Told at each new value, and when the last sender goes.
    changed: Notify,
    /// Told when the last receiver goes.
    deserted: Notify,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.value.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst) & !CLOSED
    }

    fn is_closed(&self) -> bool {
        self.version.load(Ordering::SeqCst) & CLOSED != 0
    }
}

/// A channel for the latest of its values.
///
/// Values in between may be missed; receivers are woken most urgent first.
///
/// ```
/// use upshift::{Priority, sync::watch};
///
/// upshift::Runtime::new()?.block_on(async {
///     let (sender, mut receiver) = watch::channel("starting");
///     upshift::spawn(async move { sender.send("ready") }, Priority::Inherit).detach();
///     receiver.changed().await.unwrap();
///     assert_eq!(*receiver.borrow(), "ready");
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn channel<T>(initial: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(initial);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// A look at the value. While it lives no sender can change it: do not keep it across an
/// `await`.
pub struct Ref<'a, T> {
    value: RwLockReadGuard<'a, T>,
    changed: bool,
}

impl<T> Ref<'_, T> {
    /// Had the receiver not seen this value before?
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ref")
            .field("value", &**self)
            .field("changed", &self.changed)
            .finish()
    }
}

/// Changes the value. Clone it for more senders.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// A channel without receivers.
    #[must_use]
    pub fn new(initial: T) -> Sender<T> {
        Sender {
            shared: Arc::new(Shared {
                value: RwLock::new(initial),
                version: AtomicU64::new(0),
                senders: AtomicU64::new(1),
                receivers: AtomicU64::new(0),
                changed: Notify::new(),
                deserted: Notify::new(),
            }),
        }
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// [`SendError`] with it when there is no receiver; the value in place stays.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.is_closed() {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value, also when there is no receiver; the one before.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }

    /// Changes the value in place.
    ///
    /// # Panics
    /// If `modify` does: receivers are not told then.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Changes the value in place, and tells receivers if `modify` says so; what it said.
    ///
    /// # Panics
    /// If `modify` does: receivers are not told then.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.shared.write();
        match catch_unwind(AssertUnwindSafe(|| modify(&mut value))) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(panic) => {
                drop(value);
                resume_unwind(panic);
            }
        }
        self.shared.version.fetch_add(STEP, Ordering::SeqCst);
        drop(value);
        self.shared.changed.notify_waiters();
        true
    }

    /// The value.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref {
            value: self.shared.read(),
            // A sender has seen everything.
            changed: false,
        }
    }

    /// Is there no receiver?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until there is no receiver.
    pub async fn closed(&self) {
        proceed().await;
        loop {
            let deserted = self.shared.deserted.notified();
            if self.is_closed() {
                return;
            }
            deserted.await;
        }
    }

    /// One more receiver, which has seen the present value.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared, self.shared.version())
    }

    /// How many receivers there are.
    #[must_use]
    pub fn receiver_count(&self) -> usize {
        self.shared.receivers.load(Ordering::SeqCst) as usize
    }

    /// How many senders there are.
    #[must_use]
    pub fn sender_count(&self) -> usize {
        self.shared.senders.load(Ordering::SeqCst) as usize
    }

    /// Are both of one channel?
    #[must_use]
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.senders.fetch_add(1, Ordering::SeqCst);
        Sender {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.version.fetch_or(CLOSED, Ordering::SeqCst);
            self.shared.changed.notify_waiters();
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Sender<T> {
        Sender::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// Looks at the value, and waits for new ones. Clone it for more receivers.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// That it has seen.
    version: u64,
}

impl<T> Receiver<T> {
    fn new(shared: &Arc<Shared<T>>, version: u64) -> Receiver<T> {
        shared.receivers.fetch_add(1, Ordering::SeqCst);
        Receiver {
            shared: shared.clone(),
            version,
        }
    }

    /// The value; it does not count as seen.
    pub fn borrow(&self) -> Ref<'_, T> {
        let value = self.shared.read();
        let changed = self.version != self.shared.version();
        Ref { value, changed }
    }

    /// The value, which counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        let version = self.shared.version();
        let changed = std::mem::replace(&mut self.version, version) != version;
        Ref { value, changed }
    }

    /// Is there a value that it has not seen?
    ///
    /// # Errors
    /// [`RecvError`]: all senders are gone.
    pub fn has_changed(&self) -> Result<bool, RecvError> {
        if self.is_closed() {
            return Err(RecvError(()));
        }
        Ok(self.version != self.shared.version())
    }

    /// Are all senders gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// The present value counts as not seen.
    pub fn mark_changed(&mut self) {
        self.version = self.shared.version().wrapping_sub(STEP);
    }

    /// The present value counts as seen.
    pub fn mark_unchanged(&mut self) {
        self.version = self.shared.version();
    }

    /// Waits for a value that it has not seen, which then counts as seen. The future may be
    /// dropped at any time.
    ///
    /// # Errors
    /// [`RecvError`]: it has seen the last one, and all senders are gone.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        self.version = changed_since(&self.shared, self.version).await?;
        Ok(())
    }

    /// Waits for a value that the test accepts, the present one first.
    ///
    /// # Errors
    /// [`RecvError`]: the last one was not accepted, and all senders are gone.
    ///
    /// # Panics
    /// If the test does.
    pub async fn wait_for(
        &mut self,
        mut accepts: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, RecvError> {
        proceed().await;
        let mut over = false;
        loop {
            {
                let value = self.shared.read();
                let version = self.shared.version();
                let changed = std::mem::replace(&mut self.version, version) != version;
                if !over || changed {
                    match catch_unwind(AssertUnwindSafe(|| accepts(&value))) {
                        Ok(true) => return Ok(Ref { value, changed }),
                        Ok(false) => {}
                        Err(panic) => {
                            drop(value);
                            resume_unwind(panic);
                        }
                    }
                }
            }
            if over {
                return Err(RecvError(()));
            }
            over = changed_since(&self.shared, self.version).await.is_err();
        }
    }

    /// Are both of one channel?
    #[must_use]
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Waits for another version than that: which.
async fn changed_since<T>(shared: &Shared<T>, seen: u64) -> Result<u64, RecvError> {
    proceed().await;
    loop {
        let changed = shared.changed.notified();
        let now = shared.version.load(Ordering::SeqCst);
        if now & !CLOSED != seen {
            return Ok(now & !CLOSED);
        }
        if now & CLOSED != 0 {
            return Err(RecvError(()));
        }
        changed.await;
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Receiver::new(&self.shared, self.version)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.deserted.notify_waiters();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
