//! A shared descriptor that stays open while an operation on it is in flight.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// A descriptor that handles and operations share. It is closed when the last of them is dropped,
/// so its number cannot be reused while an operation on it is in flight.
///
/// Cloning and dropping cost one atomic addition each. Operations whose handles have been dropped
/// keep the descriptor open until they have ended; [`Ring::settle`](crate::Ring::settle) ends them.
///
/// ```
/// # use upshift_ring::Fd;
/// let fd = Fd::from(std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null")?));
/// let other = fd.clone();
/// let fd = fd.try_into_owned().unwrap_err(); // still shared
/// drop(other);
/// assert!(fd.try_into_owned().is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fd(Arc<OwnedFd>);

impl Fd {
    /// Creates a handle that owns the descriptor.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Self(Arc::new(fd.into()))
    }

    /// Returns the descriptor if nothing else shares it, otherwise the handle itself.
    ///
    /// # Errors
    ///
    /// The handle, if other handles or operations share the descriptor.
    pub fn try_into_owned(self) -> Result<OwnedFd, Fd> {
        Arc::try_unwrap(self.0).map_err(Fd)
    }

    /// Returns whether other handles or unfinished operations share the descriptor. One load.
    #[inline]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns a handle that does not keep the descriptor open.
    pub fn downgrade(&self) -> WeakFd {
        WeakFd(Arc::downgrade(&self.0))
    }

    #[inline]
    pub(crate) fn target(&self) -> io_uring::types::Fd {
        io_uring::types::Fd(self.0.as_raw_fd())
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor that stays usable while other handles keep it open.
///
/// ```
/// # use upshift_ring::Fd;
/// let fd = Fd::from(std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null")?));
/// let weak = fd.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(fd);
/// assert!(weak.upgrade().is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeakFd(Weak<OwnedFd>);

impl WeakFd {
    /// Returns the descriptor if it is still open. The returned value keeps it open.
    pub fn upgrade(&self) -> Option<Fd> {
        self.0.upgrade().map(Fd)
    }
}
