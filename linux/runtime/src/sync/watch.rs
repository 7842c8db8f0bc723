//! A channel that keeps only the latest value.
//!
//! The version counts the values; its lowest bit is set when the senders are gone. The count
//! changes only while the value is locked for writing, so it is constant for a thread that holds
//! the value's lock. A waiter subscribes to a notification before it reads the version, so it
//! misses no change. The lock of the value is `std`'s, because a reference to the value may be held
//! for long, but never across an `await`.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};

use super::atomic::{AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::{Notify, proceed};

pub mod error;

use error::{RecvError, SendError};

/// Bit of the version that is set when the senders are gone.
const CLOSED: u64 = 1;
/// Difference between the versions of two successive values.
const STEP: u64 = 2;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    senders: AtomicU64,
    receivers: AtomicU64,
    /// Notified at each new value, and when the last sender is dropped.
    changed: Notify,
    /// Notified when the last receiver is dropped.
    no_receivers: Notify,
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

/// Creates a channel that keeps the latest of the values sent.
///
/// Receivers may miss values in between; they are woken most urgent first.
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

/// A borrow of the value. While it lives no sender can change the value, so do not keep it across
/// an `await`.
///
/// ```
/// use upshift::sync::watch;
///
/// let (sender, receiver) = watch::channel(1);
/// {
///     let value = receiver.borrow();
///     assert_eq!((*value, value.has_changed()), (1, false));
/// }
/// sender.send(2)?;
/// assert!(receiver.borrow().has_changed());
/// # Ok::<(), watch::error::SendError<i32>>(())
/// ```
pub struct Ref<'a, T> {
    value: RwLockReadGuard<'a, T>,
    changed: bool,
}

impl<T> Ref<'_, T> {
    /// Returns true if the receiver had not seen this value before.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::watch::channel(1);
    /// sender.send(2)?;
    /// assert!(receiver.borrow_and_update().has_changed());
    /// assert!(!receiver.borrow().has_changed()); // The value has been seen now.
    /// # Ok::<(), upshift::sync::watch::error::SendError<i32>>(())
    /// ```
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
///
/// ```
/// use upshift::sync::watch;
///
/// let (sender, receiver) = watch::channel("starting");
/// let second = sender.clone();
/// second.send("ready")?;
/// assert_eq!(*receiver.borrow(), "ready");
/// drop((sender, second));
/// assert!(receiver.is_closed());
/// # Ok::<(), watch::error::SendError<&str>>(())
/// ```
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Creates a channel without receivers.
    ///
    /// ```
    /// let sender = upshift::sync::watch::Sender::new("starting");
    /// assert_eq!(sender.receiver_count(), 0);
    /// assert_eq!(*sender.subscribe().borrow(), "starting");
    /// ```
    #[must_use]
    pub fn new(initial: T) -> Sender<T> {
        Sender {
            shared: Arc::new(Shared {
                value: RwLock::new(initial),
                version: AtomicU64::new(0),
                senders: AtomicU64::new(1),
                receivers: AtomicU64::new(0),
                changed: Notify::new(),
                no_receivers: Notify::new(),
            }),
        }
    }

    /// Replaces the value and notifies all receivers.
    ///
    /// # Errors
    /// [`SendError`] with `value` when there is no receiver; the old value stays.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// sender.send(2)?;
    /// assert_eq!(*receiver.borrow(), 2);
    /// drop(receiver);
    /// assert_eq!(sender.send(3).unwrap_err().0, 3);
    /// # Ok::<(), upshift::sync::watch::error::SendError<i32>>(())
    /// ```
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.is_closed() {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value even when there is no receiver. Returns the old value.
    ///
    /// ```
    /// let sender = upshift::sync::watch::Sender::new(1);
    /// assert_eq!(sender.send_replace(2), 1);
    /// assert_eq!(*sender.subscribe().borrow(), 2);
    /// ```
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }

    /// Changes the value in place and notifies all receivers.
    ///
    /// # Panics
    /// If `modify` panics; receivers are not notified then.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(vec![1]);
    /// sender.send_modify(|list| list.push(2));
    /// assert_eq!(*receiver.borrow(), [1, 2]);
    /// ```
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Changes the value in place, and notifies all receivers if `modify` returns true. Returns
    /// the result of `modify`.
    ///
    /// # Panics
    /// If `modify` panics; receivers are not notified then.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// let raise = |to: i32| {
    ///     sender.send_if_modified(|value| {
    ///         let higher = to > *value;
    ///         *value = to.max(*value);
    ///         higher
    ///     })
    /// };
    /// assert!(raise(3) && !raise(2));
    /// assert_eq!(*receiver.borrow(), 3);
    /// ```
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

    /// Borrows the value.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::watch::channel(1);
    /// assert_eq!(*sender.borrow(), 1);
    /// ```
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref {
            value: self.shared.read(),
            // A sender has always seen the latest value.
            changed: false,
        }
    }

    /// Returns true if there is no receiver.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// assert!(!sender.is_closed());
    /// drop(receiver);
    /// assert!(sender.is_closed());
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until there is no receiver.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// drop(receiver);
    /// sender.closed().await;
    /// # });
    /// ```
    pub async fn closed(&self) {
        proceed().await;
        loop {
            let no_receivers = self.shared.no_receivers.notified();
            if self.is_closed() {
                return;
            }
            no_receivers.await;
        }
    }

    /// Creates a receiver, which has seen the present value.
    ///
    /// ```
    /// let sender = upshift::sync::watch::Sender::new(1);
    /// let receiver = sender.subscribe();
    /// assert_eq!(receiver.has_changed().ok(), Some(false));
    /// ```
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared, self.shared.version())
    }

    /// Returns the number of receivers.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// let _second = receiver.clone();
    /// assert_eq!(sender.receiver_count(), 2);
    /// ```
    #[must_use]
    pub fn receiver_count(&self) -> usize {
        self.shared.receivers.load(Ordering::SeqCst) as usize
    }

    /// Returns the number of senders.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::watch::channel(1);
    /// let _second = sender.clone();
    /// assert_eq!(sender.sender_count(), 2);
    /// ```
    #[must_use]
    pub fn sender_count(&self) -> usize {
        self.shared.senders.load(Ordering::SeqCst) as usize
    }

    /// Returns true if both are senders of one channel.
    ///
    /// ```
    /// use upshift::sync::watch::Sender;
    ///
    /// let sender = Sender::new(1);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&Sender::new(1)));
    /// ```
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

/// Reads the value, and waits for new values. Clone it for more receivers.
///
/// ```
/// use upshift::sync::watch;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = watch::channel(1);
/// let mut second = receiver.clone();
/// sender.send(2).unwrap();
/// sender.send(3).unwrap();
/// // Both see the latest value only.
/// for receiver in [&mut receiver, &mut second] {
///     receiver.changed().await.unwrap();
///     assert_eq!(*receiver.borrow(), 3);
/// }
/// # });
/// ```
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Newest version that this receiver has seen.
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

    /// Borrows the value, without marking it as seen.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel("old");
    /// sender.send("new")?;
    /// assert_eq!(*receiver.borrow(), "new");
    /// assert!(receiver.has_changed().unwrap()); // `borrow` does not mark the value as seen.
    /// # Ok::<(), upshift::sync::watch::error::SendError<&str>>(())
    /// ```
    pub fn borrow(&self) -> Ref<'_, T> {
        let value = self.shared.read();
        let changed = self.version != self.shared.version();
        Ref { value, changed }
    }

    /// Borrows the value and marks it as seen.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::watch::channel(1);
    /// sender.send(2)?;
    /// assert!(receiver.borrow_and_update().has_changed());
    /// assert!(!receiver.borrow_and_update().has_changed());
    /// # Ok::<(), upshift::sync::watch::error::SendError<i32>>(())
    /// ```
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        let version = self.shared.version();
        let changed = std::mem::replace(&mut self.version, version) != version;
        Ref { value, changed }
    }

    /// Returns true if there is a value that this receiver has not seen.
    ///
    /// # Errors
    /// [`RecvError`] if all senders are gone.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// assert!(!receiver.has_changed().unwrap());
    /// sender.send(2).unwrap();
    /// assert!(receiver.has_changed().unwrap());
    /// drop(sender);
    /// assert!(receiver.has_changed().is_err());
    /// ```
    pub fn has_changed(&self) -> Result<bool, RecvError> {
        if self.is_closed() {
            return Err(RecvError(()));
        }
        Ok(self.version != self.shared.version())
    }

    /// Returns true if all senders are gone.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::watch::channel(1);
    /// assert!(!receiver.is_closed());
    /// drop(sender);
    /// assert!(receiver.is_closed());
    /// assert_eq!(*receiver.borrow(), 1); // The value stays.
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Marks the present value as not seen.
    ///
    /// ```
    /// let (_sender, mut receiver) = upshift::sync::watch::channel(1);
    /// receiver.mark_changed();
    /// assert!(receiver.has_changed().unwrap());
    /// ```
    pub fn mark_changed(&mut self) {
        self.version = self.shared.version().wrapping_sub(STEP);
    }

    /// Marks the present value as seen.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::watch::channel(1);
    /// sender.send(2).unwrap();
    /// receiver.mark_unchanged();
    /// assert!(!receiver.has_changed().unwrap());
    /// ```
    pub fn mark_unchanged(&mut self) {
        self.version = self.shared.version();
    }

    /// Waits for a value that this receiver has not seen, and marks it as seen.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time, because no value is marked as seen until the future
    /// is ready.
    ///
    /// # Errors
    /// [`RecvError`] if the last value has been seen and all senders are gone.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::watch::channel(1);
    /// sender.send(2).unwrap();
    /// receiver.changed().await.unwrap();
    /// assert_eq!(*receiver.borrow(), 2);
    /// drop(sender);
    /// assert!(receiver.changed().await.is_err());
    /// # });
    /// ```
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        self.version = changed_since(&self.shared, self.version).await?;
        Ok(())
    }

    /// Waits until `accepts` returns true for a value. Tests the present value first.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time; values that were tested count as seen.
    ///
    /// # Errors
    /// [`RecvError`] if the last value was not accepted and all senders are gone.
    ///
    /// # Panics
    /// If `accepts` panics.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::watch::channel(0);
    /// let task = async move {
    ///     for n in 1..=3 {
    ///         sender.send(n).unwrap();
    ///         upshift::yield_now().await;
    ///     }
    /// };
    /// upshift::spawn(task, upshift::Priority::Inherit).detach();
    /// assert_eq!(*receiver.wait_for(|&n| n >= 3).await.unwrap(), 3);
    /// # });
    /// ```
    pub async fn wait_for(
        &mut self,
        mut accepts: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, RecvError> {
        proceed().await;
        let mut senders_gone = false;
        loop {
            {
                let value = self.shared.read();
                let version = self.shared.version();
                let changed = std::mem::replace(&mut self.version, version) != version;
                if !senders_gone || changed {
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
            if senders_gone {
                return Err(RecvError(()));
            }
            senders_gone = changed_since(&self.shared, self.version).await.is_err();
        }
    }

    /// Returns true if both are receivers of one channel.
    ///
    /// ```
    /// use upshift::sync::watch;
    ///
    /// let (sender, receiver) = watch::channel(1);
    /// let (_other_sender, other) = watch::channel(1);
    /// assert!(receiver.same_channel(&sender.subscribe()));
    /// assert!(!receiver.same_channel(&other));
    /// ```
    #[must_use]
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Waits for a version other than `old_version`, and returns it.
async fn changed_since<T>(shared: &Shared<T>, old_version: u64) -> Result<u64, RecvError> {
    proceed().await;
    loop {
        let changed = shared.changed.notified();
        let version = shared.version.load(Ordering::SeqCst);
        if version & !CLOSED != old_version {
            return Ok(version & !CLOSED);
        }
        if version & CLOSED != 0 {
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
            self.shared.no_receivers.notify_waiters();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
