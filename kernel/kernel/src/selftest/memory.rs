//! Tests of frames and heap.

use alloc::vec::Vec;

use super::Outcome;
use crate::ensure;
use crate::memory::frames::{Frame, free_frames};
use crate::memory::heap;
#[cfg(feature = "isolated")]
use crate::memory::{PAGE, isolated};

pub(super) async fn frames_come_back() -> Outcome {
    let before = free_frames();
    let mut frames = Vec::with_capacity(256);
    let with_list = free_frames();
    for _ in 0..256 {
        frames.push(Frame::zeroed().map_err(|_| "no frame")?);
    }
    ensure!(
        free_frames() == with_list - 256,
        "the free frames are not 256 fewer"
    );
    let mut addresses: Vec<_> = frames.iter().map(Frame::address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    ensure!(addresses.len() == 256, "a frame was handed out twice");
    drop((frames, addresses));
    // The heap may keep a few pages for later allocations.
    ensure!(
        free_frames() >= before - 2,
        "{} of {before} frames came back",
        free_frames()
    );
    Ok(())
}

pub(super) async fn blocks_split_and_merge() -> Outcome {
    // There are two rounds, because the first lets the heap grow.
    let mut free = [0; 2];
    for round in &mut free {
        let big: Vec<u8> = Vec::with_capacity(1 << 20);
        let small: Vec<Vec<u8>> = (0..64).map(|_| Vec::with_capacity(4096)).collect();
        drop(small);
        drop(big);
        *round = free_frames();
    }
    ensure!(free[0] == free[1], "{free:?} frames free");
    let largest: Vec<u8> = Vec::with_capacity(4 << 20);
    ensure!(largest.capacity() == 4 << 20, "the blocks have not merged");
    Ok(())
}

pub(super) async fn heap_serves_every_size() -> Outcome {
    let before = heap::in_use();
    let mut all = Vec::new();
    for size in (1..6000).step_by(37) {
        let mut block: Vec<u8> = Vec::with_capacity(size);
        block.resize(size, size as u8);
        all.push(block);
    }
    for block in &all {
        ensure!(
            block.iter().all(|byte| *byte == block.len() as u8),
            "{} bytes are not kept",
            block.len()
        );
    }
    drop(all);
    ensure!(
        heap::in_use() == before,
        "{} bytes leaked",
        heap::in_use() - before
    );
    Ok(())
}

/// Memory that the kernel has allocated for ended programs returns to the frame allocator, where it
/// is available for any purpose.
pub(super) async fn pages_of_the_heap_come_back() -> Outcome {
    const BLOCKS_PER_SIZE: usize = 2_000;
    let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(7 * BLOCKS_PER_SIZE);
    let before = free_frames();
    for size in [16, 32, 64, 128, 256, 512, 1024] {
        blocks.extend((0..BLOCKS_PER_SIZE).map(|_| Vec::with_capacity(size)));
    }
    // The blocks have 2,000 × 2,032 bytes, which fill more than 990 frames.
    ensure!(
        free_frames() < before - 900,
        "the heap has allocated too few frames"
    );
    // The blocks are freed in another order.
    let mut index = 0;
    while !blocks.is_empty() {
        index = (index + 7_919) % blocks.len();
        blocks.swap_remove(index);
    }
    // A page of each size stays allocated.
    ensure!(
        free_frames() + 7 >= before,
        "{} of {before} frames came back",
        free_frames()
    );
    Ok(())
}

pub(super) async fn heap_answers_null_when_memory_is_out() -> Outcome {
    let mut memory: Vec<u8> = Vec::new();
    ensure!(
        memory.try_reserve_exact(1 << 40).is_err(),
        "the heap has reserved a TiB"
    );
    Ok(())
}

#[cfg(feature = "isolated")]
pub(super) async fn programs_see_two_pages_of_the_kernel() -> Outcome {
    let mapped = isolated::upper_half_table().upper_bytes();
    ensure!(mapped == 2 * PAGE, "{mapped} bytes are mapped");
    Ok(())
}

#[cfg(feature = "isolated")]
pub(super) async fn address_space_ids_are_distinct_and_come_back() -> Outcome {
    for round in 0..2 {
        let asids = core::iter::from_fn(|| isolated::Asid::new().ok());
        let asids: Vec<_> = asids.take(2 * isolated::ASIDS).collect();
        let mut numbers: Vec<_> = asids.iter().map(isolated::Asid::asid).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // The kernel has ASID 0.
        let expected = (1..isolated::ASIDS).collect::<Vec<_>>();
        ensure!(numbers == expected, "round {round}: {numbers:?}");
    }
    Ok(())
}
