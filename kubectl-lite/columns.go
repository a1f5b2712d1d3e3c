package kubectllite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// pathForms matches the common forms of a path: with or without braces, with or without the leading dot.
var pathForms = regexp.MustCompile(`^\{\.?([^{}]+)\}$|^\.?([^{}]+)$`)

// relaxedJSONPath turns "metadata.name", ".metadata.name" and "{metadata.name}" into "{.metadata.name}".
func relaxedJSONPath(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	parts := pathForms.FindStringSubmatch(text)
	if parts == nil {
		return "", errors.New(
			"unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'")
	}
	return "{." + parts[1] + parts[2] + "}", nil
}

// columnPrinter prints the table of -o custom-columns, with cells found by JSONPath.
type columnPrinter struct {
	headers   []string
	cells     []*jsonpath.JSONPath
	noHeaders bool
	started   bool
}

// newColumnPrinter reads "HEADER:path,HEADER:path" or, for custom-columns-file, a file with a line of headers
// and one of paths.
func newColumnPrinter(format, argument string, noHeaders bool) (printers.ResourcePrinter, error) {
	if argument == "" {
		return nil, fmt.Errorf("%s format specified but no %s given", format, strings.ReplaceAll(format, "-", " "))
	}
	if format == "custom-columns-file" {
		text, err := os.ReadFile(argument)
		if err != nil {
			return nil, fmt.Errorf("error reading template %s, %v", argument, err)
		}
		return columnsFromTemplate(text)
	}
	p := &columnPrinter{noHeaders: noHeaders}
	for _, column := range strings.Split(argument, ",") {
		header, path, ok := strings.Cut(column, ":")
		if !ok {
			return nil, fmt.Errorf("unexpected custom-columns spec: %s, expected <header>:<json-path-expr>", column)
		}
		if err := p.add(header, path); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func columnsFromTemplate(text []byte) (printers.ResourcePrinter, error) {
	lines := bytes.Split(text, []byte("\n"))
	headers := strings.Fields(string(lines[0]))
	if len(headers) == 0 {
		return nil, errors.New("invalid template, missing header line. Expected format is one line of space " +
			"separated headers, one line of space separated column specs.")
	}
	if len(lines) < 2 || len(bytes.TrimSpace(lines[1])) == 0 {
		return nil, errors.New("invalid template, missing spec line. Expected format is one line of space " +
			"separated headers, one line of space separated column specs.")
	}
	paths := strings.Fields(string(lines[1]))
	if len(headers) != len(paths) {
		return nil, fmt.Errorf("number of headers (%d) and field specifications (%d) don't match",
			len(headers), len(paths))
	}
	p := &columnPrinter{}
	for i := range headers {
		if err := p.add(headers[i], paths[i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *columnPrinter) add(header, path string) error {
	path, err := relaxedJSONPath(path)
	if err != nil {
		return err
	}
	cell := jsonpath.New(header).AllowMissingKeys(true)
	if err := cell.Parse(path); err != nil {
		return err
	}
	p.headers, p.cells = append(p.headers, header), append(p.cells, cell)
	return nil
}

func (p *columnPrinter) PrintObj(obj runtime.Object, out io.Writer) error {
	tabs, ok := out.(flushWriter)
	if !ok {
		tabs = printers.GetNewTabWriter(out)
		defer tabs.Flush() //nolint:errcheck // the writer below has reported it
	}
	if !p.noHeaders && !p.started {
		p.started = true
		fmt.Fprintln(tabs, strings.Join(p.headers, "\t"))
	}
	if !meta.IsListType(obj) {
		return p.printRow(obj, tabs)
	}
	return meta.EachListItem(obj, func(item runtime.Object) error { return p.printRow(item, tabs) })
}

func (p *columnPrinter) printRow(obj runtime.Object, w io.Writer) error {
	content, err := contentOf(obj)
	if err != nil {
		return err
	}
	row := make([]string, len(p.cells))
	for i, cell := range p.cells {
		found, err := cell.FindResults(content)
		if err != nil {
			return err
		}
		var texts []string
		for _, values := range found {
			for _, value := range values {
				texts = append(texts, cellText(printers.EscapeTerminal(fmt.Sprint(value.Interface()))))
			}
		}
		if len(texts) == 0 {
			texts = []string{"<none>"}
		}
		row[i] = strings.Join(texts, ",")
	}
	_, err = fmt.Fprintln(w, strings.Join(row, "\t"))
	return err
}

// contentOf returns an object as JSON values. For a watch event these are its type and object.
func contentOf(obj runtime.Object) (map[string]any, error) {
	if event, ok := obj.(*metav1.WatchEvent); ok {
		inner, err := contentOf(event.Object.Object)
		return map[string]any{"type": event.Type, "object": inner}, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
}
