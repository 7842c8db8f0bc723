//! What the kernel and user programs agree on.
#![no_std]
#![forbid(unsafe_code)]
