// Speed of two Ps: the workloads of bench/kit/src/multi.rs with the same parameters. A Go program
// has no thread outside the runtime, so there is no remote spawn.
package main

import (
	"sync"
	"sync/atomic"
)

const (
	spawns     = 10_000
	yieldTasks = 200
	yieldTurns = 1_000
	pings      = 1_000
	chain      = 1_000
	senders    = 10
	messages   = 1_000
	room       = 100
)

func multi() {
	measure("spawn local", 5*spawns, repeat(5, spawnLocal))
	yields("yield", yieldTasks, yieldTurns)
	measure("ping-pong", 10*pings, repeat(10, pingPong))
	measure("chained spawn", 20*chain, repeat(20, chainedSpawn))
	measure("mpsc, 10 senders", 3*senders*messages, repeat(3, tenSenders))
}

func repeat(runs int, run func()) func() {
	return func() {
		for range runs {
			run()
		}
	}
}

// end counts goroutines down; the last one ends the wait.
type end struct {
	left atomic.Int64
	over chan struct{}
}

func endOf(tasks int64) *end {
	e := &end{over: make(chan struct{})}
	e.left.Store(tasks)
	return e
}

func (e *end) one() {
	if e.left.Add(-1) == 0 {
		close(e.over)
	}
}

func spawnLocal() {
	e := endOf(spawns)
	for range spawns {
		go e.one()
	}
	<-e.over
}

func pingPong() {
	e := endOf(pings)
	for range pings {
		go func() {
			ping, pong := make(chan struct{}, 1), make(chan struct{}, 1)
			go func() {
				<-ping
				pong <- struct{}{}
			}()
			ping <- struct{}{}
			<-pong
			e.one()
		}()
	}
	<-e.over
}

func chainedSpawn() {
	e := endOf(1)
	var link func(left int)
	link = func(left int) {
		if left == 0 {
			e.one()
			return
		}
		go link(left - 1)
	}
	go link(chain)
	<-e.over
}

func tenSenders() {
	queue := make(chan int, room)
	var sending sync.WaitGroup
	sending.Add(senders)
	for range senders {
		go func() {
			defer sending.Done()
			for message := range messages {
				queue <- message
			}
		}()
	}
	go func() {
		sending.Wait()
		close(queue)
	}()
	for range queue {
	}
}
