// Promlint says what Prometheus' checker has to say of the metrics on its standard input, one line per problem.
// It is what `promtool check metrics` runs, without the rest of promtool.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, "promlint: not in the text format:", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Println(problem.Metric, problem.Text)
	}
}
