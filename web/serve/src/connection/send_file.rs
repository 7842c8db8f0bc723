//! Sends files from the page cache to the socket without a copy through this process.
//!
//! hyper decides the order of the bytes that a connection writes, and handles only slices of
//! memory. So the body of a large file hands out *placeholders*, which are slices of a static
//! buffer that is never sent. [`ObservedIo`](super::observed::ObservedIo) recognises them by their
//! address and sends the same number of bytes of the first queued file instead. Responses of HTTP/1
//! are sent one after another, and so are their files.
//!
//! hyper must not copy the slices that it is given to write. hyper does not copy them, since the
//! I/O below accepts several slices at once
//! ([`is_write_vectored`](hyper::rt::Write::is_write_vectored)).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::files::{FileBody, PIECE};

/// Memory of all placeholders.
static WINDOW: [u8; PIECE] = [0; PIECE];

/// Returns a placeholder for the next bytes of a file. `left` is the number of bytes of the file
/// that remain.
pub(crate) fn placeholder(left: u64) -> Bytes {
    let length = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
    Bytes::from_static(&WINDOW[..length])
}

#[inline]
pub(super) fn is_placeholder(bytes: &[u8]) -> bool {
    WINDOW.as_ptr_range().contains(&bytes.as_ptr()) && !bytes.is_empty()
}

/// The files of a connection for which placeholders have been handed out, in order. The first file
/// contains the byte to be sent next.
#[derive(Default)]
pub(crate) struct SendFileQueue(Mutex<VecDeque<FileBody>>);

impl SendFileQueue {
    pub(super) fn files(&self) -> MutexGuard<'_, VecDeque<FileBody>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, file: FileBody) {
        self.files().push_back(file);
    }
}

impl fmt::Debug for SendFileQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendFileQueue")
            .field(&self.files().len())
            .finish()
    }
}
