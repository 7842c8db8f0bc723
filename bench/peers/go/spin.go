package main

import (
	"encoding/binary"
	"net"
	"runtime"
	"sort"
	"sync"
	"syscall"
	"unsafe"
)

const (
	frameSize   = 24
	outstanding = 256 // requests of a connection that are under way, at most
	maxService  = 60_000_000_000
	maxLevel    = 63
)

// turnsPerNs is how many turns of spinTurns a ns of CPU time takes.
var turnsPerNs float64

// spinTurns is the loop of the other servers: a step of a shift-register generator per turn, in registers.
//
//go:noinline
func spinTurns(turns uint64) uint64 {
	x := turns | 1
	for i := uint64(0); i < turns; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// threadClock is the CPU time of this thread in ns; the goroutine must be locked to it.
func threadClock() int64 {
	var time syscall.Timespec
	const threadCPU = 3
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&time)), 0)
	return time.Nano()
}

// calibrate measures turnsPerNs: the median of 15 samples.
func calibrate() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const sample = 300_000
	times := make([]float64, 15)
	for i := range times {
		before := threadClock()
		spinTurns(sample)
		times[i] = float64(max(threadClock()-before, 1))
	}
	sort.Float64s(times)
	turnsPerNs = sample / times[len(times)/2]
}

// spin serves a connection: a goroutine per request, replies in the order of completion. Go knows no levels.
func spin(conn net.Conn) {
	defer conn.Close()
	var output sync.Mutex
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, outstanding)
	input := make([]byte, readSize)
	filled := 0
	for {
		n, err := conn.Read(input[filled:])
		if err != nil {
			return
		}
		filled += n
		used := 0
		for ; filled-used >= frameSize; used += frameSize {
			var frame [frameSize]byte
			copy(frame[:], input[used:])
			service := binary.LittleEndian.Uint64(frame[:])
			if service > maxService || binary.LittleEndian.Uint64(frame[8:]) > maxLevel {
				return
			}
			room <- struct{}{}
			running.Add(1)
			go func() {
				defer running.Done()
				spinTurns(uint64(float64(service) * turnsPerNs))
				output.Lock()
				_, _ = conn.Write(frame[:])
				output.Unlock()
				<-room
			}()
		}
		filled = copy(input, input[used:filled])
	}
}
