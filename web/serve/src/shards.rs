//! Per-vCPU values. The vCPU that serves a request writes its counters and notes, without a word
//! that another vCPU writes too; readers add the values up.
//!
//! A coroutine returns a resource to the shard from which it was taken, even if the coroutine has
//! moved meanwhile. So the values must be as safe to share as any others.
//!
//! Cost: a load to find the shard; one load per vCPU to add up a counter.

/// A value on its own pair of cache lines: the CPU fetches the adjacent line too.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lines<T>(T);

/// A value for each vCPU (see the module).
#[derive(Debug)]
pub(crate) struct PerVcpu<T>(Box<[Lines<T>]>);

impl<T: Default> PerVcpu<T> {
    /// Creates a value for each of `vcpus` vCPUs; vCPUs that are added later share them.
    pub(crate) fn new(vcpus: usize) -> PerVcpu<T> {
        let shards = (0..vcpus.max(1)).map(|_| Lines::default());
        PerVcpu(shards.collect())
    }
}

impl<T> PerVcpu<T> {
    /// Returns the index of the calling thread's vCPU; the first one outside of vCPUs.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        match upshift::get_vcpu() {
            None => 0,
            Some(vcpu) if vcpu < self.0.len() => vcpu,
            Some(vcpu) => vcpu % self.0.len(),
        }
    }

    /// Returns the value at an index.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> &T {
        &self.0[place].0
    }

    /// Returns the value of the calling thread's vCPU.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        self.at(self.place())
    }

    /// Returns the values of all vCPUs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lines| &lines.0)
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
    fn each_vcpu_has_its_own_and_none_is_lost() {
        let runtime = Runtime::builder().vcpus(2).build().unwrap();
        let shards: &'static PerVcpu<AtomicU64> = Box::leak(Box::new(PerVcpu::new(2)));
        shards.here().fetch_add(1, Relaxed);
        runtime.block_on(async {
            let all: Vec<_> = (0..100)
                .map(|_| {
                    let counts = async {
                        let vcpu = upshift::get_vcpu().expect("a coroutine runs on one");
                        assert_eq!(shards.place(), vcpu);
                        shards.here().fetch_add(1, Relaxed);
                    };
                    upshift::spawn(counts, upshift::Priority::Inherit)
                })
                .collect();
            for one in all {
                one.await.unwrap();
            }
        });
        assert_eq!(shards.iter().map(|n| n.load(Relaxed)).sum::<u64>(), 101);
    }
}
