// Work conservation: the wait of a ready goroutine while one of two Ps idles and another goroutine
// computes on the other P. The kinds and times are those of bench/kit/src/conserve.rs. A program
// cannot see on which P a goroutine waits, so that is left to the scheduler.
package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	iterations = 35
	compute    = 20 * time.Millisecond
	settle     = 2 * time.Millisecond
	timer      = 10 * time.Millisecond
	write      = 5 * time.Millisecond
)

func conserve() {
	kinds := []struct {
		name string
		// once is what the neighbour does before it computes. It returns a channel that
		// reports the wait of the other goroutine.
		once func() <-chan time.Duration
	}{
		{"spawn", spawned},
		{"wake", func() <-chan time.Duration { return woken(1) }},
		{"wake, first of two", func() <-chan time.Duration { return woken(2) }},
		{"timer", timed},
		{"data", written},
	}
	for _, kind := range kinds {
		var samples []string
		for i := range iterations + 1 {
			over := make(chan time.Duration)
			go func() {
				time.Sleep(settle)
				waited := kind.once()
				for began := time.Now(); time.Since(began) < compute; {
				}
				over <- <-waited
			}()
			if waited := <-over; i > 0 {
				samples = append(samples, fmt.Sprint(waited.Nanoseconds()))
			}
		}
		fmt.Printf("{\"bench\":%q,\"peer\":\"go\",\"samples\":[%s]}\n", kind.name, strings.Join(samples, ","))
	}
}

func spawned() <-chan time.Duration {
	waited := make(chan time.Duration, 1)
	since := time.Now()
	go func() { waited <- time.Since(since) }()
	return waited
}

// woken starts and wakes this number of other goroutines, and measures the first one.
func woken(others int) <-chan time.Duration {
	waited := make(chan time.Duration, 1)
	var wakes []chan time.Time
	for i := range others {
		wake := make(chan time.Time, 1)
		wakes = append(wakes, wake)
		go func() {
			since := <-wake
			if i == 0 {
				waited <- time.Since(since)
			}
		}()
	}
	time.Sleep(settle)
	for _, wake := range wakes {
		wake <- time.Now()
	}
	return waited
}

func timed() <-chan time.Duration {
	waited := make(chan time.Duration, 1)
	go func() {
		due := time.Now().Add(timer)
		time.Sleep(timer)
		waited <- time.Since(due)
	}()
	time.Sleep(settle)
	return waited
}

func written() <-chan time.Duration {
	waited := make(chan time.Duration, 1)
	sockets, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		panic(err)
	}
	inside := os.NewFile(uintptr(sockets[0]), "")
	reader, err := net.FileConn(inside)
	inside.Close()
	if err != nil {
		panic(err)
	}
	since := make(chan time.Time, 1)
	go func() {
		reader.Read(make([]byte, 1))
		now := time.Now()
		reader.Close()
		waited <- now.Sub(<-since)
	}()
	time.Sleep(settle)
	go func() {
		// This goroutine has a thread of its own and sleeps in the kernel, not in the
		// scheduler.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		asleep := syscall.NsecToTimespec(write.Nanoseconds())
		syscall.Nanosleep(&asleep, nil)
		since <- time.Now()
		syscall.Write(sockets[1], []byte("!"))
		syscall.Close(sockets[1])
	}()
	// Until the writing thread sleeps.
	time.Sleep(settle / 2)
	return waited
}
