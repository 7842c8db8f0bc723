// The product of two matrices over net/http: GET /matrix?n=, the same work as `/matrix` of `upshift serve`.
package main

import (
	"fmt"
	"net/http"
	"strconv"
)

func app() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/matrix", product)
	return mux
}

func product(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 || n > 512 {
		http.Error(w, "n must be a number from 1 to 512", http.StatusBadRequest)
		return
	}
	cell := func(row, column int) float64 { return float64((row*31 + column*17) % 10) }
	a := make([]float64, n*n)
	b := make([]float64, n*n)
	for at := range a {
		a[at] = cell(at/n, at%n)
		b[at] = cell(at%n, at/n)
	}
	sums := make([]float64, n)
	trace := 0.0
	for i := 0; i < n; i++ {
		clear(sums)
		for k := 0; k < n; k++ {
			left := a[i*n+k]
			right := b[k*n : k*n+n]
			for j := range right {
				sums[j] += left * right[j]
			}
		}
		trace += sums[i]
	}
	body := fmt.Sprintf("{\"n\":%d,\"trace\":%g}", n, trace)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write([]byte(body))
}
