package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// table encodes documents as a meta.k8s.io/v1 Table in one piece.
func (f *Form) table(ctx context.Context, objects []*storage.Object, m metav1.ListMeta, columns bool) ([]byte, error) {
	if f.Resource.WebhookConverted && !f.converted {
		var err error
		if objects, err = ConvertDocuments(ctx, f.Resource, objects); err != nil {
			return nil, err
		}
	}
	b, err := f.tableList(objects, m, columns)
	if err != nil {
		return nil, err
	}
	return b.whole(ctx)
}

// tableList encodes documents as a meta.k8s.io/v1 Table, which kubectl get prints. It encodes the rows lazily.
// Documents of a kind that another server converts must be converted already.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
func (f *Form) tableList(objects []*storage.Object, m metav1.ListMeta, columns bool) (*ListBody, error) {
	return f.tableOf(len(objects), m, columns, func(ctx context.Context, i int) (metav1.TableRow, error) {
		return f.row(ctx, objects[i])
	})
}

// tableOf returns a Table of n rows.
func (f *Form) tableOf(n int, m metav1.ListMeta, columns bool,
	row func(ctx context.Context, i int) (metav1.TableRow, error)) (*ListBody, error) {
	t := metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: m,
		Rows:     []metav1.TableRow{},
	}
	if columns {
		t.ColumnDefinitions = f.Resource.Columns
	}
	if errs := validation.ValidateTableOptions(&metav1.TableOptions{IncludeObject: f.IncludeObject}); len(errs) > 0 {
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	head, err := json.Marshal(&t)
	if err != nil {
		return nil, fmt.Errorf("encoding a table: %w", err)
	}
	const tail = "]}" // rows is the last member
	return &ListBody{Len: n, Size: -1, head: bytes.TrimSuffix(head, []byte(tail)), between: []byte{','},
		tail: []byte(tail),
		item: func(ctx context.Context, buf []byte, i int) ([]byte, error) {
			r, err := row(ctx, i)
			if err != nil {
				return buf, err
			}
			doc, err := json.Marshal(&r)
			if err != nil {
				return buf, fmt.Errorf("encoding a table: %w", err)
			}
			return append(buf, doc...), nil
		}}, nil
}

// row returns the row of a document. A document of a kind that another server converts must be converted already.
func (f *Form) row(ctx context.Context, o *storage.Object) (metav1.TableRow, error) {
	res := f.Resource
	var obj api.Object
	var err error
	if res.WebhookConverted {
		obj, err = decode(res, o)
	} else {
		obj, err = Decode(ctx, res, o)
	}
	if err != nil {
		return metav1.TableRow{}, err
	}
	row := metav1.TableRow{Cells: res.CellsAt(f.Clock.Now(), obj)}
	if res.RowConditions != nil {
		row.Conditions = res.RowConditions(obj)
	}
	switch f.IncludeObject {
	case metav1.IncludeNone:
	case metav1.IncludeObject:
		if !res.WebhookConverted {
			if o, err = ConvertDocument(ctx, res, o); err != nil {
				return row, err
			}
		}
		row.Object = runtime.RawExtension{Raw: o.JSON}
	default:
		row.Object = runtime.RawExtension{Raw: partialOf(o)}
	}
	return row, nil
}

// bookmarkRow returns the row of a bookmark, which represents an object that has only metadata. It marks the end of
// the initial events even if the client wants no objects in rows.
func (f *Form) bookmarkRow(o *storage.Object, initialEventsEnd bool) metav1.TableRow {
	row := metav1.TableRow{Cells: f.Resource.CellsAt(f.Clock.Now(), Own(f.Resource).New())}
	switch {
	case f.IncludeObject == metav1.IncludeObject:
		row.Object = runtime.RawExtension{Raw: o.JSON}
	case f.IncludeObject != metav1.IncludeNone || initialEventsEnd:
		row.Object = runtime.RawExtension{Raw: partialOf(o)}
	}
	return row
}
