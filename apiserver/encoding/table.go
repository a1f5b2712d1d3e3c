package encoding

import (
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

// table encodes documents as a meta.k8s.io/v1 Table, which kubectl get prints.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
func (f *Form) table(ctx context.Context, objects []*storage.Object, m metav1.ListMeta, columns bool) ([]byte, error) {
	t := metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: m,
		Rows:     make([]metav1.TableRow, len(objects)),
	}
	if columns {
		t.ColumnDefinitions = f.Resource.Columns
	}
	if errs := validation.ValidateTableOptions(&metav1.TableOptions{IncludeObject: f.IncludeObject}); len(errs) > 0 {
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	if f.Resource.Remote && !f.converted {
		var err error
		if objects, err = ConvertDocuments(ctx, f.Resource, objects); err != nil {
			return nil, err
		}
	}
	for i, o := range objects {
		if err := wanted(ctx, i); err != nil {
			return nil, err
		}
		row, err := f.row(ctx, o)
		if err != nil {
			return nil, err
		}
		t.Rows[i] = row
	}
	body, err := json.Marshal(&t)
	if err != nil {
		return nil, fmt.Errorf("encoding a table: %w", err)
	}
	return body, nil
}

// row is a document's. One that another server converts has been converted.
func (f *Form) row(ctx context.Context, o *storage.Object) (metav1.TableRow, error) {
	res := f.Resource
	var obj api.Object
	var err error
	if res.Remote {
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
		if !res.Remote {
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
