// Promql lists the metrics that rules and dashboards query, one a line: the name, the labels that the queries select
// by, and the files. It is a module of its own, so that the parser of Prometheus is no dependency of the project.
//
//	promql SOURCE FILE...
//
// The files are Kubernetes manifests: PrometheusRules, and ConfigMaps with Grafana's dashboards. SOURCE names their
// origin in the first lines of the list, which is cmd/coxswain/testdata/dashboards.txt (make dashboards).
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func main() {
	l := &list{metrics: map[string]*metric{}, recorded: map[string]bool{}, parser: parser.NewParser(parser.Options{})}
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: promql SOURCE FILE...")
		os.Exit(2)
	}
	for _, file := range os.Args[2:] {
		if err := l.read(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			os.Exit(1)
		}
	}
	fmt.Printf("# The metrics that the rules and dashboards of %s\n# query: names, labels, files. make dashboards "+
		"renews the list.\n", os.Args[1])
	l.print(os.Stdout)
}

type list struct {
	metrics  map[string]*metric
	recorded map[string]bool // the names of recording rules
	parser   parser.Parser
}

type metric struct{ labels, files map[string]bool }

// read adds the queries of a file with YAML documents.
func (l *list) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	documents := yaml.NewDecoder(bufio.NewReader(f))
	for {
		var document any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = l.walk(document, strings.TrimSuffix(filepath.Base(file), ".yaml"))
		}
		if err != nil {
			return err
		}
	}
}

// walk adds all queries in a document: the field expr of rules and of dashboards' panels, and the queries of their
// variables. A dashboard is JSON in the data of a ConfigMap.
func (l *list) walk(value any, file string) error {
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			if err := l.walk(v, file); err != nil {
				return err
			}
		}
	case map[string]any:
		if name, ok := value["record"].(string); ok {
			l.recorded[name] = true
		}
		for key, v := range value {
			text, isText := v.(string)
			switch {
			case isText && key == "expr":
				if err := l.query(text, file); err != nil {
					return err
				}
			case isText && (key == "query" || key == "definition") && strings.HasPrefix(text, "label_values("):
				if err := l.query(firstArgument(text), file); err != nil {
					return err
				}
			case isText && strings.HasSuffix(key, ".json"):
				var dashboard any
				if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&dashboard); err != nil {
					return err
				}
				if err := l.walk(dashboard, strings.TrimSuffix(key, ".json")); err != nil {
					return err
				}
			default:
				if err := l.walk(v, file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// firstArgument returns the query in label_values(query, label).
func firstArgument(text string) string {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "label_values("), ")")
	if i := strings.LastIndex(text, ","); i >= 0 {
		return text[:i]
	}
	return "" // the values of a label of all metrics
}

// variable is one of Grafana's variables outside a string.
var variable = regexp.MustCompile(`\$\{?\w+(:\w+)?\}?`)

// query adds the metrics of a query.
func (l *list) query(text, file string) error {
	if text == "" {
		return nil
	}
	text = strings.ReplaceAll(text, "$__rate_interval", "5m")
	text = strings.ReplaceAll(text, "$interval", "5m")
	expr, err := l.parser.ParseExpr(text)
	if err != nil {
		if expr, err = l.parser.ParseExpr(variable.ReplaceAllString(text, "5m")); err != nil {
			return fmt.Errorf("query %q: %w", text, err)
		}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			l.add(selector, file)
		}
		return nil
	})
	return nil
}

func (l *list) add(selector *parser.VectorSelector, file string) {
	name, labels := selector.Name, []string{}
	for _, m := range selector.LabelMatchers {
		if m.Name == "__name__" {
			name = m.Value
		} else {
			labels = append(labels, m.Name)
		}
	}
	if l.metrics[name] == nil {
		l.metrics[name] = &metric{labels: map[string]bool{}, files: map[string]bool{}}
	}
	l.metrics[name].files[file] = true
	for _, label := range labels {
		l.metrics[name].labels[label] = true
	}
}

// print writes the metrics that no recording rule makes.
func (l *list) print(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(l.metrics)) {
		if !l.recorded[name] {
			m := l.metrics[name]
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, joined(m.labels), joined(m.files))
		}
	}
}

func joined(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), ",") }
