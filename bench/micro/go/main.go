// Microbenchmarks of Go. The part `one-thread` runs with GOMAXPROCS=1, the other parts with 2. Each
// figure is printed as one line of JSON.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const samples = 7

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "one-thread":
		runtime.GOMAXPROCS(1)
		oneThread()
	case len(os.Args) == 2 && os.Args[1] == "two-threads":
		runtime.GOMAXPROCS(2)
		hops("channel-hop-2-workers")
	case len(os.Args) == 2 && os.Args[1] == "conserve":
		runtime.GOMAXPROCS(2)
		conserve()
	case len(os.Args) == 2 && os.Args[1] == "multi":
		runtime.GOMAXPROCS(2)
		multi()
	default:
		fmt.Fprintln(os.Stderr, "usage: one-thread|two-threads|conserve|multi")
		os.Exit(2)
	}
}

func oneThread() {
	measure("spawn-join", 100_000, func() {
		done := make(chan struct{})
		for range 100_000 {
			go func() { done <- struct{}{} }()
			<-done
		}
	})
	measure("spawn-join-1000", 100_000, func() {
		var group sync.WaitGroup
		for range 100 {
			group.Add(1000)
			for range 1000 {
				go group.Done()
			}
			group.Wait()
		}
	})
	yields("yield-2", 2, 200_000)
	yields("yield-1000", 1000, 500)
	hops("channel-hop")
	measure("timer", 100_000, func() {
		for range 100_000 {
			time.NewTimer(time.Minute).Stop()
		}
	})
	memory()
}

// measure prints the median, the smallest and the largest sample. A first sample is discarded.
func measure(name string, operations int, sample func()) {
	var taken []float64
	for i := range samples + 1 {
		started := time.Now()
		sample()
		if i > 0 {
			taken = append(taken, float64(time.Since(started).Nanoseconds())/float64(operations))
		}
	}
	slices.Sort(taken)
	figure(name, taken[samples/2], taken[0], taken[samples-1])
}

func figure(name string, median, min, max float64) {
	fmt.Printf("{\"bench\":%q,\"peer\":\"go\",\"ns\":%.1f,\"min\":%.1f,\"max\":%.1f}\n", name, median, min, max)
}

func yields(name string, tasks, turns int) {
	measure(name, tasks*turns, func() {
		var group sync.WaitGroup
		group.Add(tasks)
		for range tasks {
			go func() {
				defer group.Done()
				for range turns {
					runtime.Gosched()
				}
			}()
		}
		group.Wait()
	})
}

func hops(name string) {
	const rounds = 100_000
	measure(name, 2*rounds, func() {
		to, back := make(chan struct{}, 1), make(chan struct{}, 1)
		go func() {
			for range to {
				back <- struct{}{}
			}
		}()
		for range rounds {
			to <- struct{}{}
			<-back
		}
		close(to)
	})
}

func memory() {
	const idle = 1_000_000
	before := resident()
	never := make(chan struct{})
	for range idle {
		go func() { <-never }()
	}
	runtime.Gosched()
	each := float64(resident()-before) / idle
	figure("bytes-per-task", each, each, each)
	runtime.KeepAlive(never)
}

// resident is the memory of the process in bytes, without pages of files.
func resident() int {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	fields := strings.Fields(string(statm))
	pages := func(i int) int {
		n, _ := strconv.Atoi(fields[i])
		return n
	}
	return 4096 * (pages(1) - pages(2))
}
