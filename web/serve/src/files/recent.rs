//! A cache of files that were opened for one request, for other requests that had arrived by then.
//!
//! A request may be answered with any state that a file has between the request's arrival and its
//! answer. So the file that one request opens answers all requests that were received before: those
//! that wait for their turn meanwhile. Each vCPU caches the last few files that it has opened, with
//! the time before the opening began. A later request opens the file itself: no content is served
//! that was out of date when it was asked for. A server that answers one request at a time does not
//! use the cache.
//!
//! Missing names are cached too: most texts have no compressed form beside them.
//!
//! [`RecentFiles::forget`] closes all cached files, so that no file stays open for long.
//!
//! Cost: a comparison of names and an uncontended lock per file; saves four system calls and the
//! creation of header fields.

use std::sync::{Arc, Mutex, PoisonError};

use super::open::{Found, Root};
use crate::shards::PerVcpu;

/// Number of names that a vCPU caches.
pub(crate) const CACHED_FILES: usize = 8;

/// The files that a vCPU has opened.
#[derive(Default)]
struct Opened {
    kept: Vec<One>,
    /// Index of the entry to be replaced next.
    next: usize,
}

struct One {
    root: Arc<Root>,
    name: Box<str>,
    /// Time after which the file was opened.
    at: u64,
    found: Option<Arc<Found>>,
}

/// The cache of opened files, by vCPU.
pub(crate) struct RecentFiles(PerVcpu<Mutex<Opened>>);

impl RecentFiles {
    pub(crate) fn new(vcpus: usize) -> RecentFiles {
        RecentFiles(PerVcpu::new(vcpus))
    }

    /// Returns the result for a name that was opened after this time; `None` if it is not cached.
    pub(super) fn find(
        &self,
        root: &Arc<Root>,
        name: &str,
        since: u64,
    ) -> Option<Option<Arc<Found>>> {
        // If the owner of the lock is suspended, opening the file is the shorter wait.
        let opened = self.0.here().try_lock().ok()?;
        let mut kept = opened.kept.iter();
        let one = kept.find(|one| one.is(root, name))?;
        (one.at >= since).then(|| one.found.clone())
    }

    /// Caches the result of an opening that began after this time.
    pub(super) fn keep(&self, root: &Arc<Root>, name: &str, at: u64, found: Option<&Arc<Found>>) {
        let Ok(mut opened) = self.0.here().try_lock() else {
            return;
        };
        let Opened { kept, next } = &mut *opened;
        let found = found.cloned();
        if let Some(one) = kept.iter_mut().find(|one| one.is(root, name)) {
            // Another request may have begun later and ended sooner.
            if one.at < at {
                (one.at, one.found) = (at, found);
            }
            return;
        }
        let one = One {
            root: root.clone(),
            name: name.into(),
            at,
            found,
        };
        if kept.len() < CACHED_FILES {
            kept.push(one);
        } else {
            kept[*next] = one;
            *next = (*next + 1) % CACHED_FILES;
        }
    }

    /// Closes all cached files.
    pub(crate) fn forget(&self) {
        for opened in self.0.iter() {
            let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = std::mem::take(&mut opened.kept);
            opened.next = 0;
            drop(opened);
            drop(kept);
        }
    }
}

impl One {
    fn is(&self, root: &Arc<Root>, name: &str) -> bool {
        *self.name == *name && Arc::ptr_eq(&self.root, root)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_opened_answers_those_that_had_come_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let root = Root::open(folder.path()).unwrap();
        let recent_files = RecentFiles::new(1);
        let find = |since: u64| {
            recent_files
                .find(&root, "a", since)
                .map(|found| found.map(|found| found.size))
        };
        let opens = |at: u64| {
            let found = root.find_now("a").unwrap().map(Arc::new);
            recent_files.keep(&root, "a", at, found.as_ref());
        };
        assert_eq!(find(0), None);
        opens(10);
        assert_eq!(find(10), Some(None), "there is none");
        fs::write(&path, "1").unwrap();
        assert_eq!(find(11), None, "it came later: there may be one now");
        opens(20);
        assert_eq!((find(20), find(21)), (Some(Some(1)), None));
        fs::write(&path, "22").unwrap();
        // This opening began before the cached one and ended after it.
        recent_files.keep(&root, "a", 15, None);
        assert_eq!(find(20), Some(Some(1)));
        opens(30);
        assert_eq!(find(30), Some(Some(2)));
        for n in 0..CACHED_FILES {
            recent_files.keep(&root, &n.to_string(), 40, None);
        }
        assert_eq!(find(0), None, "it has been replaced");
        assert!(recent_files.find(&root, "1", 40).is_some());
        recent_files.forget();
        assert!(recent_files.find(&root, "1", 0).is_none());
    }
}
