//! Caches opened files. Requests share a file if they arrived before it was opened.
//!
//! A request may be answered with any state that a file has between the request's arrival and its
//! response. So the file that one request opens can answer all requests that arrived before the
//! opening and have not been answered. Each vCPU caches the last few files that it has opened, with
//! the time at which the opening began. A later request opens the file itself, so no stale content
//! is served. The cache has no effect if the server handles one request at a time.
//!
//! Missing names are also cached, because most text files have no compressed file beside them.
//!
//! [`RecentFiles::clear`] closes all cached files, so that no file stays open for long.
//!
//! A lookup costs a comparison of names and an uncontended lock; a cached file saves four system
//! calls and the creation of header fields.

use std::sync::{Arc, Mutex, PoisonError};

use super::open::{Found, Root};
use crate::per_vcpu::PerVcpu;

/// Number of names that a vCPU caches.
pub(crate) const CACHED_FILES: usize = 8;

#[derive(Default)]
struct FileCache {
    entries: Vec<CachedFile>,
    /// Index of the entry that is replaced next.
    next_replaced: usize,
}

struct CachedFile {
    root: Arc<Root>,
    name: Box<str>,
    opened_at: u64,
    found: Option<Arc<Found>>,
}

pub(crate) struct RecentFiles(PerVcpu<Mutex<FileCache>>);

impl RecentFiles {
    pub(crate) fn new(vcpus: usize) -> RecentFiles {
        RecentFiles(PerVcpu::new(vcpus))
    }

    /// Returns the cached result for a name, which may be that no such file exists, if its opening
    /// began at `since` or later.
    pub(super) fn find(
        &self,
        root: &Arc<Root>,
        name: &str,
        since: u64,
    ) -> Option<Option<Arc<Found>>> {
        // If the holder of the lock is suspended, opening the file takes less time than waiting for
        // the lock.
        let cache = self.0.local().try_lock().ok()?;
        let mut entries = cache.entries.iter();
        let entry = entries.find(|entry| entry.matches(root, name))?;
        (entry.opened_at >= since).then(|| entry.found.clone())
    }

    pub(super) fn insert(
        &self,
        root: &Arc<Root>,
        name: &str,
        opened_at: u64,
        found: Option<&Arc<Found>>,
    ) {
        let Ok(mut cache) = self.0.local().try_lock() else {
            return;
        };
        let FileCache {
            entries,
            next_replaced,
        } = &mut *cache;
        let found = found.cloned();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.matches(root, name)) {
            // A later opening may have finished sooner.
            if entry.opened_at < opened_at {
                (entry.opened_at, entry.found) = (opened_at, found);
            }
            return;
        }
        let entry = CachedFile {
            root: root.clone(),
            name: name.into(),
            opened_at,
            found,
        };
        if entries.len() < CACHED_FILES {
            entries.push(entry);
        } else {
            entries[*next_replaced] = entry;
            *next_replaced = (*next_replaced + 1) % CACHED_FILES;
        }
    }

    pub(crate) fn clear(&self) {
        for cache in self.0.iter() {
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let entries = std::mem::take(&mut cache.entries);
            cache.next_replaced = 0;
            drop(cache);
            drop(entries);
        }
    }
}

impl CachedFile {
    fn matches(&self, root: &Arc<Root>, name: &str) -> bool {
        *self.name == *name && Arc::ptr_eq(&self.root, root)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_opened_file_answers_earlier_requests_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let root = Root::open(folder.path()).unwrap();
        let recent_files = RecentFiles::new(1);
        let find = |since: u64| {
            recent_files
                .find(&root, "a", since)
                .map(|found| found.map(|found| found.size))
        };
        let open_at = |at: u64| {
            let found = root.find_now("a").unwrap().map(Arc::new);
            recent_files.insert(&root, "a", at, found.as_ref());
        };
        assert_eq!(find(0), None);
        open_at(10);
        assert_eq!(find(10), Some(None), "there is no such file");
        fs::write(&path, "1").unwrap();
        assert_eq!(
            find(11),
            None,
            "the request arrived later: the file may exist now"
        );
        open_at(20);
        assert_eq!((find(20), find(21)), (Some(Some(1)), None));
        fs::write(&path, "22").unwrap();
        // This opening began before the cached opening and ended after it.
        recent_files.insert(&root, "a", 15, None);
        assert_eq!(find(20), Some(Some(1)));
        open_at(30);
        assert_eq!(find(30), Some(Some(2)));
        for n in 0..CACHED_FILES {
            recent_files.insert(&root, &n.to_string(), 40, None);
        }
        assert_eq!(find(0), None, "the entry has been replaced");
        assert!(recent_files.find(&root, "1", 40).is_some());
        recent_files.clear();
        assert!(recent_files.find(&root, "1", 0).is_none());
    }
}
