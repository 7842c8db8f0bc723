//! Limits the request rate of each client address by a token bucket.
//!
//! A full bucket is the same as a new one, so it is removed. The table therefore contains only
//! addresses that have sent requests recently.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use upshift_core::TokenBucket;

const SECOND: u64 = 1_000_000_000;
/// Largest number of addresses with a bucket; requests from further addresses are not limited.
const MAX_ADDRESSES: usize = 1 << 17;

/// Returns the address that identifies a client; in IPv6 this is the /64 network.
pub(crate) fn peer_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        v4 => v4,
    }
}

/// Number of shards of the table, each with its own lock. An address belongs to one shard,
/// regardless of the vCPU that serves its requests.
const SHARDS: usize = 16;

/// The buckets. A token is one nanosecond, and a bucket holds one second.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    buckets: [Mutex<HashMap<IpAddr, TokenBucket>>; SHARDS],
    hash: RandomState,
}

impl RateLimiter {
    fn shard_of(&self, key: IpAddr) -> MutexGuard<'_, HashMap<IpAddr, TokenBucket>> {
        // This is a second hash function, because with the hash function of the maps, each map
        // would use only a sixteenth of its slots.
        let shard = self.hash.hash_one(key) % SHARDS as u64;
        lock(&self.buckets[shard as usize])
    }

    /// Takes the tokens for a request of an address at `rate` requests per second, with a burst of
    /// the same number. Returns false if too few tokens remain. Clients of a Unix socket are not
    /// limited, because only the proxy in front can distinguish them.
    pub(crate) fn take(&self, peer: IpAddr, rate: u32, now: u64) -> bool {
        if rate == 0 || peer.is_unspecified() {
            return true;
        }
        let cost = SECOND / u64::from(rate);
        let key = peer_key(peer);
        let mut buckets = self.shard_of(key);
        let has_space = buckets.len() < MAX_ADDRESSES / SHARDS;
        if !has_space && !buckets.contains_key(&key) {
            return true;
        }
        let full = || TokenBucket::new(1, SECOND, now);
        buckets.entry(key).or_insert_with(full).try_take(cost, now)
    }

    /// Removes buckets that are full.
    pub(crate) fn prune(&self, now: u64) {
        for shard in &self.buckets {
            let mut buckets = lock(shard);
            if !buckets.is_empty() {
                buckets.retain(|_, bucket| !bucket.is_full(now));
            }
        }
    }
}

fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let rates = RateLimiter::default();
        let (first, second) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let burst = (0..100).filter(|_| rates.take(first, 10, SECOND)).count();
        assert_eq!(burst, 10);
        assert!(rates.take(second, 10, SECOND));
        let next = (0..100)
            .filter(|_| rates.take(first, 10, SECOND + SECOND / 2))
            .count();
        assert_eq!(next, 5);
        rates.prune(3 * SECOND);
        assert!(rates.buckets.iter().all(|shard| lock(shard).is_empty()));
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let key = |text: &str| peer_key(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
    }
}
