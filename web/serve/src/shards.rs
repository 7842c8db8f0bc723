//! One of a thing for each vCPU: what requests count and note is written by the vCPU that serves them, without a word that another one
//! writes too, and added up when it is read.
//!
//! What a coroutine takes from its shard it gives back there, also if it has moved meanwhile; so the things are as safe to share as any.
//!
//! Cost: a load to find the shard; as many loads as there are vCPUs to add one thing up.

/// On cache lines of its own: the next one is fetched with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lines<T>(T);

/// See the module.
#[derive(Debug)]
pub(crate) struct PerVcpu<T>(Box<[Lines<T>]>);

impl<T: Default> PerVcpu<T> {
    /// One for each of so many vCPUs; those that are added later share them.
    pub(crate) fn new(vcpus: usize) -> PerVcpu<T> {
        let shards = (0..vcpus.max(1)).map(|_| Lines::default());
        PerVcpu(shards.collect())
    }
}

impl<T> PerVcpu<T> {
    /// The place of the calling thread's vCPU; the first one's for what is no vCPU's.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        match upshift::get_vcpu() {
            None => 0,
            Some(vcpu) if vcpu < self.0.len() => vcpu,
            Some(vcpu) => vcpu % self.0.len(),
        }
    }

    /// What is at a place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> &T {
        &self.0[place].0
    }

    /// That of the calling thread's vCPU.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        self.at(self.place())
    }

    /// All of them.
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
