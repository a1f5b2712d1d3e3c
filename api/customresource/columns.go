package customresource

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// column is a printer column with the path of its values.
type column struct {
	kind string // string, integer, number, boolean or date
	path *path
}

var descriptions = metav1.ObjectMeta{}.SwaggerDoc()

// age is the only column of a version that defines none.
var age = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date",
	Description: descriptions["creationTimestamp"], JSONPath: ".metadata.creationTimestamp"}}

// tableOf returns the columns of a version. Like kube-apiserver, it leaves out the first column with an invalid path
// and all columns after it.
func tableOf(v *SpecVersion) (headers []metav1.TableColumnDefinition, columns []column) {
	headers = []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: descriptions["name"]}}
	defined := v.AdditionalPrinterColumns
	if len(defined) == 0 {
		defined = age
	}
	for _, d := range defined {
		path, err := newPath(d.JSONPath)
		if err != nil {
			return headers, columns
		}
		description := d.Description
		if description == "" {
			description = "Custom resource definition column (in JSONPath format): " + d.JSONPath
		}
		headers = append(headers, metav1.TableColumnDefinition{Name: d.Name, Type: d.Type, Format: d.Format,
			Description: description, Priority: d.Priority})
		columns = append(columns, column{d.Type, path})
	}
	return headers, columns
}

// cells returns the row of an object.
func cells(columns []column, o *Object) []any {
	row := append(make([]any, 0, len(columns)+1), o.Name)
	content := o.Fields
	for _, c := range columns {
		if c.path.isMetadata() {
			content = o.Content()
			break
		}
	}
	for _, c := range columns {
		value, found := c.path.find(content)
		if !found {
			row = append(row, nil)
			continue
		}
		row = append(row, c.cell(value))
	}
	return row
}

// cell converts a value to its column's type. It returns nil if the value does not have that type.
func (c *column) cell(value any) any {
	switch c.kind {
	case "string":
		if text, ok := c.path.print(value); ok {
			return text
		}
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		}
	case "number":
		switch n := value.(type) {
		case int64:
			return float64(n)
		case float64:
			return n
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		if text, ok := value.(string); ok {
			var date metav1.Time
			if date.UnmarshalQueryParameter(text) != nil {
				return "<invalid>"
			}
			if date.IsZero() {
				return "<unknown>"
			}
			return api.Since(date.Time)
		}
	}
	return nil
}
