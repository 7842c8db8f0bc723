//! A value for each vCPU, that is, for each set of run queues that a worker thread serves. A vCPU
//! updates its own value without sharing a cache line with another vCPU, and readers add up the
//! values.
//!
//! A coroutine returns a resource to the value from which it was taken, even if the coroutine has
//! moved to another vCPU meanwhile. So the values are `Sync`.
//!
//! Finding the value costs a load; adding up a counter costs one load per vCPU.

/// A value on its own pair of cache lines, since the CPU prefetches the adjacent line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheAligned<T>(T);

/// A value for each vCPU (see the module documentation).
#[derive(Debug)]
pub(crate) struct PerVcpu<T>(Box<[CacheAligned<T>]>);

impl<T: Default> PerVcpu<T> {
    /// Creates a value for each of `vcpus` vCPUs; vCPUs that are added later share these values.
    pub(crate) fn new(vcpus: usize) -> PerVcpu<T> {
        let values = (0..vcpus.max(1)).map(|_| CacheAligned::default());
        PerVcpu(values.collect())
    }
}

impl<T> PerVcpu<T> {
    /// Returns the index of the calling thread's vCPU, or 0 outside of vCPUs.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        match upshift::get_vcpu() {
            None => 0,
            Some(vcpu) if vcpu < self.0.len() => vcpu,
            Some(vcpu) => vcpu % self.0.len(),
        }
    }

    /// Returns the value at an index.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        &self.0[index].0
    }

    /// Returns the value of the calling thread's vCPU.
    #[inline]
    pub(crate) fn local(&self) -> &T {
        self.get(self.index())
    }

    /// Returns the values of all vCPUs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|aligned| &aligned.0)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use upshift::Runtime;

    use super::*;

    #[test]
    fn each_vcpu_has_its_own_value_and_none_is_lost() {
        let runtime = Runtime::builder().vcpus(2).build().unwrap();
        let counters: &'static PerVcpu<AtomicU64> = Box::leak(Box::new(PerVcpu::new(2)));
        counters.local().fetch_add(1, Relaxed);
        runtime.block_on(async {
            let tasks: Vec<_> = (0..100)
                .map(|_| {
                    let counts = async {
                        let vcpu = upshift::get_vcpu().expect("a coroutine runs on a vCPU");
                        assert_eq!(counters.index(), vcpu);
                        counters.local().fetch_add(1, Relaxed);
                    };
                    upshift::spawn(counts, upshift::Priority::Inherit)
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(counters.iter().map(|n| n.load(Relaxed)).sum::<u64>(), 101);
    }
}
